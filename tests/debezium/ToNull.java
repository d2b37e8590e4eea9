import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's engine with the properties of a file; its records go nowhere. Prints "read SECONDS RECORDS" after each
 * batch: the monotonic clock, and how many records of tables there were so far. SIGTERM ends it.
 */
public final class ToNull {
    private static long records;

    private static void take(List<ChangeEvent<SourceRecord, SourceRecord>> batch,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) throws InterruptedException {
        for (ChangeEvent<SourceRecord, SourceRecord> event : batch) {
            if (!event.value().topic().startsWith("heartbeat.")) {
                records++;
            }
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        System.out.println("read " + System.nanoTime() / 1e9 + " " + records);
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(file);
        }
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
                .using(properties)
                .notifying(ToNull::take)
                .using((success, message, error) -> {
                    System.err.println(message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                })
                .build();
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
                main.join();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        engine.run();
    }
}
