package wheelmq.compat;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * What rocketmq-filter makes of expressions: a line of JSON for each, with a letter for each set of properties.
 *
 * <p>Stdin: {"properties": [{}, ...], "expressions": ["", ...], "filters": ["group#topic", ...]}. A letter is T for true,
 * F for false, N for unknown, E for an error; an expression that does not parse has none. A filter's line has the
 * positions of its bits.
 */
public final class FilterTable {
    private static final int ERROR_RATE = 20;
    private static final int CONSUMERS = 32;

    public static void main(String[] arguments) throws IOException {
        JSONObject asked = JSON.parseObject(new String(System.in.readAllBytes(), StandardCharsets.UTF_8));
        JSONArray properties = asked.getJSONArray("properties");
        for (Object text : asked.getJSONArray("expressions")) {
            print(Map.of("expression", text, "results", results((String) text, properties)));
        }
        BloomFilter bloom = BloomFilter.createByFn(ERROR_RATE, CONSUMERS);
        for (Object name : asked.getJSONArray("filters")) {
            print(Map.of("filter", name, "bits", bloom.calcBitPositions((String) name), "length", bloom.getM()));
        }
    }

    private static String results(String text, JSONArray properties) {
        Expression expression;
        try {
            expression = new SqlFilter().compile(text);
        } catch (Exception refused) {
            return "";
        }
        StringBuilder letters = new StringBuilder();
        for (Object one : properties) {
            Map<String, String> texts = new HashMap<>();
            ((JSONObject) one).forEach((name, value) -> texts.put(name, (String) value));
            letters.append(letter(expression, texts));
        }
        return letters.toString();
    }

    private static char letter(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Exception error) {
            return 'E';
        }
    }

    private static void print(Map<String, Object> line) {
        System.out.println(JSON.toJSONString(line, JSONWriter.Feature.MapSortField));
    }
}
