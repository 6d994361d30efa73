import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Times records one by one: `OneRecord HOST:PORT TOPIC`. Each line of the input is `plain COUNT` or `transaction COUNT`;
 * the answer is the median in microseconds. A plain record is acknowledged by all replicas in sync.
 */
public class OneRecord {
    public static void main(String[] arguments) throws Exception {
        var record = new ProducerRecord<byte[], byte[]>(arguments[1], 0, null, new byte[1024]);
        Map<String, Object> settings =
            Map.of("bootstrap.servers", arguments[0], "linger.ms", 0, "acks", "all", "max.block.ms", 30000);
        Map<String, Object> named = new java.util.HashMap<>(settings);
        named.put("transactional.id", "one-record");
        try (var plain = producer(settings); var transactional = producer(named)) {
            transactional.initTransactions();
            var calls = new BufferedReader(new InputStreamReader(System.in));
            for (String line = calls.readLine(); line != null; line = calls.readLine()) {
                String[] words = line.split(" ");
                long[] times = new long[Integer.parseInt(words[1])];
                for (int number = 0; number < times.length; number++) {
                    long begun = System.nanoTime();
                    if (words[0].equals("plain")) {
                        plain.send(record).get();
                    } else {
                        transactional.beginTransaction();
                        transactional.send(record);
                        transactional.commitTransaction();
                    }
                    times[number] = System.nanoTime() - begun;
                }
                Arrays.sort(times);
                System.out.println(times[times.length / 2] / 1000);
                System.out.flush();
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
