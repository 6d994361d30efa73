import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Properties;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own log, as a program: the tests compare its files with ours.
 *
 * <pre>
 *   write  DIR SETTING=VALUE…             append batches of every kind, as a leader
 *   append DIR FILE SETTING=VALUE…        append the batches in FILE, as a follower
 *   show   DIR TIMESTAMP…                 print records, positions and lookups by time
 *   offsets FILE                          print what a checkpoint of offsets says
 * </pre>
 */
public final class KafkaLog {
    private static final long START_MS = 1_700_000_000_000L;
    private static final int PRODUCER_ID_EXPIRATION_MS = 86_400_000;

    public static void main(String[] args) throws Exception {
        Path directory = Path.of(args[1]).toAbsolutePath();
        switch (args[0]) {
            case "write" -> run(directory, settings(args, 2), KafkaLog::appendEveryKind);
            case "append" -> run(directory, settings(args, 3), log -> appendFrom(log, Path.of(args[2])));
            case "show" -> run(directory, new Properties(), log -> show(log, args));
            case "offsets" -> showOffsets(directory);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private interface Work {
        void on(UnifiedLog log) throws IOException;
    }

    private static Properties settings(String[] args, int from) {
        Properties settings = new Properties();
        for (int i = from; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    private static void run(Path directory, Properties settings, Work work) throws Exception {
        Files.createDirectories(directory);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            directory.toFile(), new LogConfig(settings), 0L, 0L, scheduler, new BrokerTopicStats(), Time.SYSTEM,
            PRODUCER_ID_EXPIRATION_MS, new ProducerStateManagerConfig(PRODUCER_ID_EXPIRATION_MS, false),
            PRODUCER_ID_EXPIRATION_MS, new LogDirFailureChannel(1), true, Optional.empty());
        try {
            work.on(log);
        } finally {
            log.close();
            scheduler.shutdown();
        }
    }

    // Writing -------------------------------------------------------------------------------------------------------

    private static void appendEveryKind(UnifiedLog log) throws IOException {
        long timestamp = START_MS;
        for (int round = 0; round < 12; round++) {
            for (CompressionType type : CompressionType.values()) {
                Compression compression = Compression.of(type).build();
                log.appendAsLeader(MemoryRecords.withRecords(compression, records(timestamp, round)), round / 3);
                // Times rise and fall, and two batches in a row may share one.
                timestamp += round % 3 == 0 ? 0 : round % 5 == 4 ? -700 : 1_000;
            }
            appendTransaction(log, round, timestamp);
        }
    }

    private static SimpleRecord[] records(long timestamp, int round) {
        List<SimpleRecord> records = new ArrayList<>();
        Header[] headers = {new RecordHeader("trace", new byte[] {1, (byte) 0xff}), new RecordHeader("none", null)};
        records.add(new SimpleRecord(timestamp, bytes("key " + round), bytes("value ".repeat(round + 1)), headers));
        records.add(new SimpleRecord(timestamp - 5, (byte[]) null, bytes("no key")));
        if (round % 2 == 1)
            records.add(new SimpleRecord(timestamp + 5, bytes("tombstone"), null));
        return records.toArray(new SimpleRecord[0]);
    }

    private static void appendTransaction(UnifiedLog log, int round, long timestamp) throws IOException {
        long producerId = 7;
        short producerEpoch = 1;
        int epoch = round / 3;
        SimpleRecord[] records = {new SimpleRecord(timestamp, bytes("in a transaction"), bytes("round " + round))};
        log.appendAsLeader(
            MemoryRecords.withTransactionalRecords(Compression.NONE, producerId, producerEpoch, round, records), epoch);
        ControlRecordType type = round % 2 == 0 ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        MemoryRecords marker = MemoryRecords.withEndTransactionMarker(
            timestamp, producerId, producerEpoch, new EndTransactionMarker(type, 3));
        log.appendAsLeader(
            marker, epoch, AppendOrigin.COORDINATOR, RequestLocal.noCaching(), VerificationGuard.SENTINEL,
            TransactionVersion.TV_0.featureLevel());
    }

    private static void appendFrom(UnifiedLog log, Path file) throws IOException {
        MemoryRecords all = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file)));
        for (MutableRecordBatch batch : all.batches()) {
            ByteBuffer one = ByteBuffer.allocate(batch.sizeInBytes());
            batch.writeTo(one);
            one.flip();
            log.appendAsFollower(MemoryRecords.readableRecords(one), Integer.MAX_VALUE);
        }
    }

    // Reading -------------------------------------------------------------------------------------------------------

    private static void show(UnifiedLog log, String[] args) throws IOException {
        System.out.println("end " + log.logEndOffset());
        for (LogSegment segment : log.logSegments())
            for (FileChannelRecordBatch batch : segment.log().batches())
                for (Record record : batch)
                    System.out.println(line(segment, record));
        for (int i = 2; i < args.length; i++) {
            var found = log.fetchOffsetByTimestamp(Long.parseLong(args[i]), Optional.empty()).timestampAndOffsetOpt();
            String shown = found.map(it -> it.offset + " " + it.timestamp).orElse("none");
            System.out.println("time " + args[i] + " " + shown);
        }
    }

    private static void showOffsets(Path file) throws IOException {
        new OffsetCheckpointFile(file.toFile(), new LogDirFailureChannel(1)).read().forEach(
            (partition, offset) -> System.out.println(partition + " " + offset));
    }

    private static String line(LogSegment segment, Record record) throws IOException {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers())
            headers.append(' ').append(header.key()).append('=').append(hex(header.value()));
        return "record " + record.offset() + " " + record.timestamp() + " " + hex(Optional.ofNullable(record.key()))
            + " " + hex(Optional.ofNullable(record.value())) + " " + segment.baseOffset() + " "
            + segment.translateOffset(record.offset()).position + headers;
    }

    private static String hex(Optional<ByteBuffer> buffer) {
        return buffer.map(it -> {
            byte[] bytes = new byte[it.remaining()];
            it.duplicate().get(bytes);
            return hex(bytes);
        }).orElse("null");
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : "0x" + HexFormat.of().formatHex(bytes);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
