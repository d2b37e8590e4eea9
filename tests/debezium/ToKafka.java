import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;

/**
 * Debezium's engine with the properties of a file, and Kafka Connect's part: converters and a producer, whose
 * properties begin with "producer.". SIGTERM ends it.
 */
public final class ToKafka {
    private final Converter keys;
    private final Converter values;
    private final HeaderConverter headers;
    private final KafkaProducer<byte[], byte[]> producer;

    private ToKafka(Properties properties) throws ReflectiveOperationException {
        keys = make(Converter.class, properties, "key.converter");
        keys.configure(below(properties, "key.converter."), true);
        values = make(Converter.class, properties, "value.converter");
        values.configure(below(properties, "value.converter."), false);
        headers = make(HeaderConverter.class, properties, "header.converter");
        Map<String, Object> ofHeaders = below(properties, "header.converter.");
        ofHeaders.put("converter.type", "header");
        headers.configure(ofHeaders);
        producer = new KafkaProducer<>(below(properties, "producer."), new ByteArraySerializer(),
                new ByteArraySerializer());
    }

    private static <T> T make(Class<T> type, Properties properties, String name) throws ReflectiveOperationException {
        String chosen = properties.getProperty(name, "org.apache.kafka.connect.storage.SimpleHeaderConverter");
        return type.cast(Class.forName(chosen).getDeclaredConstructor().newInstance());
    }

    private static Map<String, Object> below(Properties properties, String prefix) {
        Map<String, Object> found = new HashMap<>();
        for (String name : properties.stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), properties.getProperty(name));
            }
        }
        return found;
    }

    private void take(List<ChangeEvent<SourceRecord, SourceRecord>> batch,
            RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) throws InterruptedException {
        List<Future<RecordMetadata>> sent = new ArrayList<>(batch.size());
        for (ChangeEvent<SourceRecord, SourceRecord> event : batch) {
            sent.add(producer.send(record(event.value())));
        }
        producer.flush();
        for (int i = 0; i < sent.size(); i++) {
            try {
                sent.get(i).get();
            } catch (ExecutionException error) {
                throw new IllegalStateException(error);
            }
            committer.markProcessed(batch.get(i));
        }
        committer.markBatchFinished();
    }

    private ProducerRecord<byte[], byte[]> record(SourceRecord record) {
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(record.topic(), record.kafkaPartition(),
                record.timestamp(), keys.fromConnectData(record.topic(), record.keySchema(), record.key()),
                values.fromConnectData(record.topic(), record.valueSchema(), record.value()));
        for (Header header : record.headers()) {
            made.headers().add(header.key(), headers.fromConnectHeader(record.topic(), header.key(),
                    header.schema(), header.value()));
        }
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(file);
        }
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
                .using(properties)
                .notifying(new ToKafka(properties)::take)
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
