package wheelmq.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/**
 * Apache's client under command: one command a line on standard input, one line of JSON for each on standard output.
 *
 * <p>It ends with its standard input. Commands of time and count are bounded by who gives them.
 *
 * <pre>
 * Main NAMESRV TOPIC QUEUES BODY_BYTES consume|send|time
 *   at COUNT SPAN_MS AFTER_MS THREADS      timers with a deliver time: COUNT over SPAN_MS, the first AFTER_MS from now
 *   delays COUNT PER_SECOND MS,MS,...      timers with a delay, COUNT of each, mixed
 *   levels COUNT PER_SECOND LEVEL,...      messages with a level, COUNT of each, mixed
 *   seconds COUNT PER_SECOND SECONDS       messages with delayInSeconds, which WheelMQ alone has
 *   sends SECONDS THREADS BYTES BATCH      plain messages or batches, each thread waiting for its answer
 *   time COUNT PER_SECOND THREADS FILE     from when each was to be sent to the listener, us; with `time` alone
 *   drain COUNT DEADLINE_S                 time from the first to the last of so many that wait, into another group
 *   await COUNT DEADLINE_MS                until so many came since the last reset
 *   write FILE                             what came: key, queue, arrival, due or -1, delay or -1, exact due or -1
 *   reset                                  forget what came, and what pauses there were
 * </pre>
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Load load = new Load(arguments[0], arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
        load.makeTopic();
        Arrivals arrivals = arguments[4].equals("consume") ? Arrivals.of(arguments[0], arguments[1]) : null;
        Times times = arguments[4].equals("time") ? Times.of(arguments[0], arguments[1]) : null;
        Pauses pauses = new Pauses();
        say("\"ready\":true");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                say(obey(line.split(" "), load, arrivals, times, pauses));
            } catch (Exception error) {
                say("\"error\":\"" + error.toString().replaceAll("[\"\\\\\n]", " ") + "\"");
            }
        }
        Runtime.getRuntime().halt(0); // a shutdown of the client takes seconds and tells nothing
    }

    private static String obey(String[] words, Load load, Arrivals arrivals, Times times, Pauses pauses) throws Exception {
        switch (words[0]) {
            case "at":
                return load.at(number(words[1]), number(words[2]), number(words[3]), number(words[4]));
            case "delays":
                return load.delays(number(words[1]), number(words[2]), words[3]);
            case "levels":
                return load.levels(number(words[1]), number(words[2]), words[3]);
            case "seconds":
                return load.seconds(number(words[1]), number(words[2]), number(words[3]));
            case "sends":
                return load.sends(number(words[1]), number(words[2]), number(words[3]), number(words[4]));
            case "time":
                pauses.reset();
                return times.measure(load, number(words[1]), number(words[2]), number(words[3]), Path.of(words[4])) + "," + pauses.text();
            case "drain":
                return Drain.of(load.namesrv, load.topic, number(words[1]), number(words[2]));
            case "await":
                return arrivals.await(number(words[1]), number(words[2])) + "," + pauses.text();
            case "write":
                return arrivals.write(Path.of(words[1]));
            case "reset":
                if (arrivals != null) {
                    arrivals.reset();
                }
                pauses.reset();
                return "\"reset\":true";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private static void say(String fields) {
        System.out.println("{" + fields + "}");
        System.out.flush();
    }
}
