// The partition that the Java client chooses for each key of standard input, one a line.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class Partitions {
    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[0]);
        BufferedReader keys =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String key = keys.readLine(); key != null; key = keys.readLine())
            System.out.println(
                BuiltInPartitioner.partitionForKey(key.getBytes(StandardCharsets.UTF_8), partitions));
    }
}
