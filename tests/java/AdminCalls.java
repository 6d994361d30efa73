import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Calls of Kafka's own Admin client that its console tools do not make: AdminCalls BOOTSTRAP COMMAND ARGUMENT…
 *
 * Prints words, one answer per line. What the broker refuses is a line `error NAME MESSAGE`.
 */
public class AdminCalls {
    private static final int TIMEOUT_S = 30;

    public static void main(String[] arguments) throws Exception {
        List<String> rest = List.of(arguments).subList(2, arguments.length);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            run(admin, arguments[1], rest);
        } catch (ExecutionException error) {
            System.out.println("error " + error.getCause().getClass().getSimpleName() + " " + error.getCause().getMessage());
        }
    }

    private static void run(Admin admin, String command, List<String> rest) throws Exception {
        switch (command) {
            case "producers" -> producers(admin, rest.get(0), Integer.parseInt(rest.get(1)));
            case "features" -> features(admin);
            case "resources" -> resources(admin);
            case "quorum" -> quorum(admin);
            case "offsets" -> offsets(admin, rest.get(0));
            case "set" -> set(admin, rest.get(0), rest.get(1), rest.get(2));
            default -> throw new IllegalArgumentException(command);
        }
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static void producers(Admin admin, String topic, int broker) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        var options = new DescribeProducersOptions().brokerId(broker);
        var state = get(admin.describeProducers(Set.of(partition), options).partitionResult(partition));
        for (var it : state.activeProducers()) System.out.println("producer " + it.producerEpoch() + " " + it.lastSequence());
    }

    private static void features(Admin admin) throws Exception {
        var metadata = get(admin.describeFeatures().featureMetadata());
        new TreeMap<>(metadata.supportedFeatures()).forEach(
            (name, range) -> System.out.println("supported " + name + " " + range.minVersion() + " " + range.maxVersion()));
        new TreeMap<>(metadata.finalizedFeatures()).forEach(
            (name, range) -> System.out.println("finalized " + name + " " + range.maxVersionLevel()));
    }

    private static void resources(Admin admin) throws Exception {
        var types = Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER);
        Set<String> lines = new TreeSet<>();
        for (ConfigResource it : get(admin.listConfigResources(types, new ListConfigResourcesOptions()).all())) {
            lines.add("resource " + it.type() + " " + it.name());
        }
        lines.forEach(System.out::println);
    }

    private static void quorum(Admin admin) throws Exception {
        QuorumInfo info = get(admin.describeMetadataQuorum().quorumInfo());
        System.out.println("leader " + info.leaderId());
        for (var it : info.voters()) {
            System.out.println("voter " + it.replicaId() + " " + it.logEndOffset() + " " + it.lastFetchTimestamp().orElse(-1)
                + " " + it.lastCaughtUpTimestamp().orElse(-1));
        }
        info.nodes().forEach((id, node) -> node.endpoints().forEach(
            it -> System.out.println("endpoint " + id + " " + it.host() + " " + it.port())));
    }

    private static void offsets(Admin admin, String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<String, OffsetSpec> specs = new TreeMap<>(Map.of(
            "earliest", OffsetSpec.earliest(),
            "latest", OffsetSpec.latest(),
            "max-timestamp", OffsetSpec.maxTimestamp(),
            "earliest-local", OffsetSpec.earliestLocal(),
            "latest-tiered", OffsetSpec.latestTiered(),
            "earliest-pending-upload", OffsetSpec.earliestPendingUpload()));
        for (var it : specs.entrySet()) {
            try {
                var found = get(admin.listOffsets(Map.of(partition, it.getValue())).partitionResult(partition));
                System.out.println("offset " + it.getKey() + " " + found.offset());
            } catch (ExecutionException error) {
                System.out.println("offset " + it.getKey() + " " + error.getCause());
            }
        }
    }

    /** Set one value of a broker, or of the default of all brokers where the name is "all". */
    private static void set(Admin admin, String broker, String name, String value) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.BROKER, broker.equals("all") ? "" : broker);
        var type = value.equals("-") ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        var operation = new AlterConfigOp(new ConfigEntry(name, value.equals("-") ? "" : value), type);
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all());
        System.out.println("set " + name + " " + value);
    }
}
