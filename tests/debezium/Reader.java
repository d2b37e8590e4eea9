import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

/**
 * Debezium's engine, run as Kafka Connect would run it with the properties of a file. Prints what would be written to
 * Kafka, a JSON object per line. SIGTERM ends it.
 */
public final class Reader {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Converter keys;
    private final Converter values;
    private final HeaderConverter headers = new SimpleHeaderConverter();

    private Reader(Properties properties) throws ReflectiveOperationException {
        keys = converter(properties, "key.converter", true);
        values = converter(properties, "value.converter", false);
        headers.configure(Map.of("converter.type", "header"));
    }

    private static Converter converter(Properties properties, String name, boolean forKeys)
            throws ReflectiveOperationException {
        Map<String, String> configuration = new HashMap<>();
        for (String property : properties.stringPropertyNames()) {
            if (property.startsWith(name + ".")) {
                configuration.put(property.substring(name.length() + 1), properties.getProperty(property));
            }
        }
        Class<?> type = Class.forName(properties.getProperty(name));
        Converter converter = (Converter) type.getDeclaredConstructor().newInstance();
        converter.configure(configuration, forKeys);
        return converter;
    }

    private void take(List<ChangeEvent<SourceRecord, SourceRecord>> batch,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) throws InterruptedException {
        for (ChangeEvent<SourceRecord, SourceRecord> event : batch) {
            print(event.value());
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
    }

    private void print(SourceRecord record) {
        Map<String, String> told = new LinkedHashMap<>();
        for (Header header : record.headers()) {
            told.put(header.key(), text(headers.fromConnectHeader(record.topic(), header.key(), header.schema(),
                    header.value())));
        }
        byte[] value = values.fromConnectData(record.topic(), record.valueSchema(), record.value());
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", record.topic());
        line.put("key", text(keys.fromConnectData(record.topic(), record.keySchema(), record.key())));
        line.put("headers", told);
        line.put("value", value == null ? null : Base64.getEncoder().encodeToString(value));
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        System.out.flush();
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(file);
        }
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
                .using(properties)
                .notifying(new Reader(properties)::take)
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
