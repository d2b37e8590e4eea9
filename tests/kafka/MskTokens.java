// What an MSK cluster does with a token: it is a URL that is signed with the keys of AWS. This broker
// knows one pair of keys, which is in its configuration, and computes the signature itself.
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

public class MskTokens implements AuthenticateCallbackHandler {
    private static final String PREFIX = "https://kafka.eu-west-1.amazonaws.com/?";
    private Map<String, ?> options;

    @Override
    public void configure(Map<String, ?> settings, String mechanism, List<AppConfigurationEntry> jaas) {
        options = jaas.get(0).getOptions();
    }

    @Override
    public void handle(Callback[] callbacks) {
        for (Callback one : callbacks)
            if (one instanceof OAuthBearerValidatorCallback callback)
                try {
                    callback.token(verified(callback.tokenValue()));
                } catch (Exception refused) {
                    callback.error("invalid_token", null, null);
                }
    }

    private OAuthBearerToken verified(String token) throws Exception {
        String url = new String(Base64.getUrlDecoder().decode(token), StandardCharsets.UTF_8);
        require(url.startsWith(PREFIX));
        TreeMap<String, String> given = new TreeMap<>(); // percent-encoded values
        for (String pair : url.substring(PREFIX.length()).split("&"))
            require(given.put(pair.split("=")[0], pair.split("=")[1]) == null);
        String signature = given.remove("X-Amz-Signature");
        given.remove("User-Agent"); // not signed
        require(given.get("Action").equals("kafka-cluster%3AConnect"));
        require(given.get("X-Amz-SignedHeaders").equals("host"));
        String time = given.get("X-Amz-Date");
        String scope = time.substring(0, 8) + "/eu-west-1/kafka-cluster/aws4_request";
        require(decoded(given.get("X-Amz-Credential")).equals(options.get("id") + "/" + scope));
        Instant began =
            LocalDateTime.parse(time, DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'"))
                .toInstant(ZoneOffset.UTC);
        Instant ends = began.plusSeconds(Integer.parseInt(given.get("X-Amz-Expires")));
        require(Duration.between(began, ends).toSeconds() == 900 && Instant.now().isBefore(ends));

        StringBuilder query = new StringBuilder();
        given.forEach((name, value) ->
            query.append(query.isEmpty() ? "" : "&").append(name).append('=').append(value));
        String request = "GET\n/\n" + query + "\nhost:kafka.eu-west-1.amazonaws.com\n\nhost\n" + hash("");
        String signed = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + hash(request);
        byte[] key = ("AWS4" + options.get("secret")).getBytes(StandardCharsets.UTF_8);
        for (String part : scope.split("/")) key = hmac(key, part);
        require(HexFormat.of().formatHex(hmac(key, signed)).equals(signature));
        return new Accepted(token, began.toEpochMilli(), ends.toEpochMilli(), (String) options.get("id"));
    }

    private record Accepted(
        String value, Long startTimeMs, long lifetimeMs, String principalName)
        implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }
    }

    private static void require(boolean is) {
        if (!is) throw new IllegalArgumentException();
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private static String hash(String text) throws Exception {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }

    private static byte[] hmac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public void close() {}
}
