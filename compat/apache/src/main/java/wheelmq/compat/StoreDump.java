package wheelmq.compat;

import com.alibaba.fastjson2.JSON;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.index.IndexHeader;
import org.apache.rocketmq.store.timer.Slot;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerLog;
import org.apache.rocketmq.store.timer.TimerWheel;

/**
 * What stands in a store that no broker has open, as Apache's own classes read it: a line of JSON for each thing.
 *
 * <p>Arguments: the store's folder, the number of hash slots of an index file. Apache's classes open the single files
 * for writing, so give it a copy.
 */
public final class StoreDump {
    private static final int WHEEL_SLOTS = 7 * 24 * 3600;
    private static final int PRECISION_MS = 1000;

    private final Path root;
    private final int indexSlots;

    private StoreDump(Path root, int indexSlots) {
        this.root = root;
        this.indexSlots = indexSlots;
    }

    public static void main(String[] arguments) throws IOException {
        new StoreDump(Path.of(arguments[0]), Integer.parseInt(arguments[1])).dump();
    }

    private void dump() throws IOException {
        for (Path file : files(root.resolve("commitlog"))) {
            records(file);
        }
        for (Path topic : files(root.resolve("consumequeue"))) {
            for (Path queue : files(topic)) {
                for (Path file : files(queue)) {
                    units(topic.getFileName() + "/" + queue.getFileName(), file);
                }
            }
        }
        for (Path file : files(root.resolve("index"))) {
            index(file);
        }
        for (Path file : files(root.resolve("timerlog"))) {
            timerUnits(file);
        }
        wheel();
        checkpoints();
    }

    private void records(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
        while (bytes.remaining() >= 8) {
            int start = bytes.position();
            int size = bytes.getInt(start);
            int magic = bytes.getInt(start + 4);
            if (magic == CommitLog.BLANK_MAGIC_CODE) {
                print("blank", Map.of("position", base(file) + start, "size", size));
                return;
            }
            if (size <= 0) {
                return;
            }
            MessageExt message = MessageDecoder.decode(bytes.slice(start, size), true, true, false);
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("position", base(file) + start);
            row.put("size", size);
            row.put("topic", message.getTopic());
            row.put("queue_id", message.getQueueId());
            row.put("queue_offset", message.getQueueOffset());
            row.put("flag", message.getFlag());
            row.put("sys_flag", message.getSysFlag());
            row.put("born_ms", message.getBornTimestamp());
            row.put("born_host", host((InetSocketAddress) message.getBornHost()));
            row.put("store_ms", message.getStoreTimestamp());
            row.put("store_host", host((InetSocketAddress) message.getStoreHost()));
            row.put("reconsume_times", message.getReconsumeTimes());
            row.put("prepared_position", message.getPreparedTransactionOffset());
            row.put("body_crc", message.getBodyCRC());
            row.put("inflated_bytes", message.getBody().length);
            row.put("inflated_crc", UtilAll.crc32(message.getBody()));
            row.put("properties", new TreeMap<>(message.getProperties()));
            row.put("message_id", message.getMsgId());
            print("record", row);
            bytes.position(start + size);
        }
    }

    private void units(String queue, Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
        long offset = base(file) / ConsumeQueue.CQ_STORE_UNIT_SIZE;
        for (; bytes.hasRemaining(); offset++) {
            long position = bytes.getLong();
            int size = bytes.getInt();
            long tagsCode = bytes.getLong();
            if (size == 0) {
                return;
            }
            print("unit", Map.of("queue", queue, "queue_offset", offset, "position", position, "size", size,
                "tag_code", tagsCode));
        }
    }

    private void index(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
        IndexHeader header = new IndexHeader(bytes);
        header.load();
        String name = file.getFileName().toString();
        print("index", Map.of("file", name, "begin_ms", header.getBeginTimestamp(), "end_ms", header.getEndTimestamp(),
            "begin_position", header.getBeginPhyOffset(), "end_position", header.getEndPhyOffset(),
            "slots_used", header.getHashSlotCount(), "count", header.getIndexCount()));
        for (int number = 1; number < header.getIndexCount(); number++) {
            int at = IndexHeader.INDEX_HEADER_SIZE + indexSlots * 4 + number * 20;
            print("entry", Map.of("file", name, "number", number, "hash", bytes.getInt(at), "position",
                bytes.getLong(at + 4), "seconds", bytes.getInt(at + 12), "previous", bytes.getInt(at + 16)));
        }
    }

    private void timerUnits(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
        for (int at = 0; at + TimerLog.UNIT_SIZE <= bytes.limit(); at += TimerLog.UNIT_SIZE) {
            if (bytes.getInt(at) != TimerLog.UNIT_SIZE || bytes.getInt(at + 12) == TimerLog.BLANK_MAGIC_CODE) {
                return;
            }
            print("timer_unit", Map.of("position", base(file) + at, "previous_position", bytes.getLong(at + 4),
                "magic", bytes.getInt(at + 12), "write_ms", bytes.getLong(at + 16), "delay_ms", bytes.getInt(at + 24),
                "record_position", bytes.getLong(at + 28), "record_size", bytes.getInt(at + 36),
                "topic_hash", bytes.getInt(at + 40)));
        }
    }

    private void wheel() throws IOException {
        Path file = root.resolve("timerwheel");
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
        TimerWheel wheel = new TimerWheel(file.toString(), WHEEL_SLOTS, PRECISION_MS);
        for (int number = 0; number < bytes.limit() / Slot.SIZE; number++) {
            long time = bytes.getLong(number * Slot.SIZE);
            if (time == 0) {
                continue;
            }
            Slot slot = wheel.getSlot(time * PRECISION_MS);
            if (slot.timeMs != time * PRECISION_MS) {
                throw new IOException("slot " + number + " is not the one of its time");
            }
            print("slot", Map.of("slot", number, "time", time, "first_position", slot.firstPos, "last_position",
                slot.lastPos, "count", slot.num));
        }
        wheel.shutdown(false);
    }

    private void checkpoints() throws IOException {
        StoreCheckpoint store = new StoreCheckpoint(root.resolve("checkpoint").toString());
        print("checkpoint", Map.of("log_ms", store.getPhysicMsgTimestamp(), "queues_ms", store.getLogicsMsgTimestamp(),
            "index_ms", store.getIndexMsgTimestamp()));
        TimerCheckpoint timer = new TimerCheckpoint(root.resolve("config").resolve("timercheck").toString());
        print("timercheck", Map.of("last_read_ms", timer.getLastReadTimeMs(), "log_flush_position",
            timer.getLastTimerLogFlushPos(), "queue_offset", timer.getLastTimerQueueOffset(), "master_queue_offset",
            timer.getMasterTimerQueueOffset()));
    }

    private static String host(InetSocketAddress host) {
        return UtilAll.bytes2string(host.getAddress().getAddress()) + " " + host.getPort();
    }

    private static long base(Path file) {
        return Long.parseLong(file.getFileName().toString());
    }

    private static List<Path> files(Path folder) throws IOException {
        if (!Files.isDirectory(folder)) {
            return List.of();
        }
        try (Stream<Path> found = Files.list(folder)) {
            return found.sorted().collect(Collectors.toList());
        }
    }

    private static void print(String kind, Map<String, ?> row) {
        Map<String, Object> line = new TreeMap<>(row);
        line.put("kind", kind);
        System.out.println(JSON.toJSONString(line));
    }
}
