import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Kafka's own clients against a broker: `KafkaClients describe|assign HOST:PORT TOPIC`. Prints one fact a line. */
public class KafkaClients {
    public static void main(String[] arguments) throws Exception {
        String broker = arguments[1];
        String topic = arguments[2];
        if (arguments[0].equals("describe")) {
            describe(broker, topic);
        } else {
            assign(broker, topic);
        }
    }

    static void describe(String broker, String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
            DescribeTopicsOptions options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
            TopicDescription named =
                    admin.describeTopics(List.of(topic), options).allTopicNames().get().get(topic);
            System.out.println("topic " + operations(named.authorizedOperations()));
            TopicCollection ids = TopicCollection.ofTopicIds(List.of(named.topicId()));
            TopicDescription found =
                    admin.describeTopics(ids, options).allTopicIds().get().get(named.topicId());
            System.out.println("by id " + found.name() + " " + operations(found.authorizedOperations()));
            try {
                Uuid unknown = Uuid.randomUuid();
                admin.describeTopics(TopicCollection.ofTopicIds(List.of(unknown))).allTopicIds().get();
            } catch (ExecutionException refused) {
                System.out.println("unknown id " + refused.getCause().getClass().getSimpleName());
            }
            DescribeClusterOptions whole = new DescribeClusterOptions().includeAuthorizedOperations(true);
            System.out.println("cluster " + operations(admin.describeCluster(whole).authorizedOperations().get()));
        }
    }

    static String operations(Set<AclOperation> authorized) {
        return authorized == null ? "null" : String.join(",", new TreeSet<>(authorized.stream().map(Enum::name).toList()));
    }

    /** A consumer with a group asks for the committed offset first, and starts where the reset says. */
    static void assign(String broker, String topic) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", broker,
                "group.id", "g",
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            int count = 0;
            for (int turn = 0; turn < 100 && count < 2; turn++) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("record " + record.value());
                    count++;
                }
            }
            System.out.println("committed " + consumer.committed(Set.of(partition)).get(partition));
        }
    }
}
