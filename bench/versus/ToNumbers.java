import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's engine with the properties of a file. Prints "ready", and the number of each event on a line of its own.
 * An event is a record of the outbox table, or a message in the WAL.
 */
public final class ToNumbers {
    private static final Pattern NUMBER = Pattern.compile("\"number\": *(\\d+)");

    private static String text(Object value) {
        if (value instanceof Struct) {
            return text(((Struct) value).getStruct("message").get("content"));
        }
        if (value instanceof ByteBuffer) {
            return StandardCharsets.UTF_8.decode(((ByteBuffer) value).duplicate()).toString();
        }
        return value instanceof byte[] ? new String((byte[]) value, StandardCharsets.UTF_8) : String.valueOf(value);
    }

    private static void take(List<ChangeEvent<SourceRecord, SourceRecord>> batch,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) throws InterruptedException {
        StringBuilder lines = new StringBuilder();
        for (ChangeEvent<SourceRecord, SourceRecord> event : batch) {
            if (!event.value().topic().startsWith("heartbeat.")) {
                Matcher number = NUMBER.matcher(text(event.value().value()));
                if (!number.find()) {
                    throw new IllegalStateException("a record without a number: " + event.value());
                }
                lines.append(number.group(1)).append('\n');
            }
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        System.out.print(lines);
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(file);
        }
        DebeziumEngine.create(Connect.class)
                .using(properties)
                .notifying(ToNumbers::take)
                .using((success, message, error) -> {
                    System.err.println(message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                })
                .using(new DebeziumEngine.ConnectorCallback() {
                    @Override
                    public void pollingStarted() {
                        System.out.println("ready");
                    }
                })
                .build()
                .run();
    }
}
