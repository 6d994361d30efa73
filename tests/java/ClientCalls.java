import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.locks.ReentrantLock;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's consumers, transactional producers and console tools, told what to do: each line of the input is one call in JSON, each line of the
 * output is its answer. One process serves all tests, because each start of Java takes a second.
 */
public class ClientCalls {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Member> MEMBERS = new HashMap<>();
    private static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        var calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            JsonNode call = JSON.readTree(line);
            Object answer;
            try {
                answer = answer(call);
            } catch (ExecutionException error) {
                answer = Map.of("error", error.getCause().toString());
            } catch (Exception error) {
                answer = Map.of("error", error.toString());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Object answer(JsonNode call) throws Exception {
        String member = call.path("member").asText();
        switch (call.get("call").asText()) {
            case "tool":
                return tool(call.get("name").asText(), JSON.convertValue(call.get("arguments"), String[].class));
            case "join":
                MEMBERS.put(member, new Member(settings(call), call));
                return Map.of();
            case "look":
                return MEMBERS.get(member).look();
            case "commit":
                return MEMBERS.get(member).commit(call.get("metadata").asText());
            case "close":
                MEMBERS.remove(member).close();
                return Map.of();
            case "producer":
                PRODUCERS.put(member, new KafkaProducer<>(settings(call), new StringSerializer(), new StringSerializer()));
                PRODUCERS.get(member).initTransactions();
                return Map.of();
            case "transaction":
                transaction(PRODUCERS.get(member), call);
                return Map.of();
            case "retire":
                PRODUCERS.remove(member).close(Duration.ZERO);
                return Map.of();
            case "remove":
                return remove(settings(call), call.get("group").asText(), call.get("instance").asText());
            default:
                throw new IllegalArgumentException(call.toString());
        }
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> settings(JsonNode call) {
        return JSON.convertValue(call.get("settings"), Map.class);
    }

    private static Object remove(Map<String, Object> settings, String group, String instance) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            var options = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove(instance)));
            admin.removeMembersFromConsumerGroup(group, options).all().get();
            return Map.of();
        }
    }

    /** Begin a transaction, or go on with it; send values and offsets; end it in the way that the call says. */
    private static void transaction(KafkaProducer<String, String> producer, JsonNode call) throws Exception {
        if (call.path("begins").asBoolean(true)) producer.beginTransaction();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode it : call.path("values")) {
            sent.add(producer.send(new ProducerRecord<>(
                call.get("topic").asText(), call.path("partition").asInt(0), null, it.asText())));
        }
        if (call.has("group")) {
            var where = new TopicPartition(call.get("topic").asText(), 0);
            var offset = new OffsetAndMetadata(call.get("offset").asLong());
            producer.sendOffsetsToTransaction(
                Map.of(where, offset), new ConsumerGroupMetadata(call.get("group").asText()));
        }
        producer.flush();
        for (Future<RecordMetadata> it : sent) it.get();
        switch (call.path("end").asText()) {
            case "commit": producer.commitTransaction(); break;
            case "abort": producer.abortTransaction(); break;
            default: break;
        }
    }

    /** A console tool ends its process; here it ends with an exception in the place of that. */
    private static Object tool(String name, String[] arguments) throws Exception {
        var said = new ByteArrayOutputStream();
        var complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        List<Integer> codes = new ArrayList<>();
        Exit.Procedure end = (code, message) -> {
            codes.add(code);
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        System.setOut(new PrintStream(said, true));
        System.setErr(new PrintStream(complained, true));
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (codes.isEmpty()) {
                codes.add(1);
                thrown.getCause().printStackTrace();
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        // Some tools catch everything, this exception too, and end once more: the first code counts.
        return Map.of("code", codes.isEmpty() ? 0 : codes.get(0), "out", said.toString(), "err", complained.toString());
    }

    private static final class Ended extends RuntimeException {
    }

    /** A consumer with a thread that polls. The lock is fair, so that a call gets its turn between two polls. */
    private static final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;
        private final ReentrantLock turn = new ReentrantLock(true);
        private final Thread thread = new Thread(this::run);
        private final List<String> read = new ArrayList<>();
        private final List<String> changes = new ArrayList<>();
        private String error = "";
        private boolean isOver;

        Member(Map<String, Object> settings, JsonNode call) {
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            if (call.has("pattern")) {
                consumer.subscribe(Pattern.compile(call.get("pattern").asText()), this);
            } else if (call.has("re2")) {
                consumer.subscribe(new SubscriptionPattern(call.get("re2").asText()), this);
            } else {
                consumer.subscribe(List.of(JSON.convertValue(call.get("topics"), String[].class)), this);
            }
            thread.start();
        }

        private void run() {
            while (true) {
                turn.lock();
                try {
                    if (isOver) return;
                    for (ConsumerRecord<String, String> it : consumer.poll(Duration.ofMillis(50))) read.add(it.value());
                } catch (Exception thrown) {
                    error = thrown.toString();
                    return;
                } finally {
                    turn.unlock();
                }
            }
        }

        Object look() {
            turn.lock();
            try {
                return Map.of("owned", names(error.isEmpty() ? consumer.assignment() : List.of()), "read", List.copyOf(read),
                    "changes", List.copyOf(changes), "error", error, "id", consumer.groupMetadata().memberId());
            } finally {
                turn.unlock();
            }
        }

        /** Commit what has been read, with this text; return what the coordinator has then. */
        Object commit(String metadata) {
            turn.lock();
            try {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition it : consumer.assignment()) {
                    offsets.put(it, new OffsetAndMetadata(consumer.position(it), metadata));
                }
                consumer.commitSync(offsets);
                Map<String, Object> found = new TreeMap<>();
                consumer.committed(offsets.keySet()).forEach(
                    (where, it) -> found.put(where.toString(), List.of(it.offset(), it.metadata())));
                return found;
            } finally {
                turn.unlock();
            }
        }

        void close() throws Exception {
            turn.lock();
            isOver = true;
            turn.unlock();
            thread.join();
            consumer.close();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> given) {
            changes.add("+" + names(given));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> taken) {
            changes.add("-" + names(taken));
        }

        private static List<String> names(Collection<TopicPartition> partitions) {
            return partitions.stream().map(TopicPartition::toString).sorted().toList();
        }
    }
}
