#include "sinks/kafka/msk_token.hpp"

#include <algorithm>

#include "cloud/aws/aws_credentials.hpp"
#include "cloud/aws/aws_region.hpp"
#include "core/base64.hpp"

namespace outbox {

static constexpr Micros lifetime = seconds(900);  // the longest that MSK accepts

// Amazon's own signers have the same parts in the same order.
std::string sign_msk_token(const std::string& region, const AwsKeys& keys, Micros unix_time) {
    const std::string host = "kafka." + regional_domain(region);
    Sigv4 signature(region, "kafka-cluster");
    std::string url = "https://" + host + "/?";
    url += signature.presigned_query(
        {.method = "GET", .query = "Action=kafka-cluster%3AConnect", .headers = {{"Host", host}}},
        keys, basic_timestamp(unix_time), lifetime / seconds(1));
    url += "&User-Agent=pg_outbox";  // not signed
    std::string token;
    append_base64(token, url);
    token.erase(token.find_last_not_of('=') + 1);
    for (char& c : token)  // the alphabet for URLs
        c = c == '+' ? '-' : c == '/' ? '_' : c;
    return token;
}

namespace {

class MskToken final : public TokenSource {
  public:
    MskToken(const KafkaOptions& options, const Clock& clock)
        : TokenSource(clock),
          region_(options.login.aws.region),
          credentials_(options.login.aws, options.limits.request, clock) {}

    int descriptor() const noexcept override { return credentials_.descriptor(); }
    Micros deadline() const noexcept override { return credentials_.deadline(); }
    std::string origin() const override { return "signed for " + region_; }
    void rejected() noexcept override {
        TokenSource::rejected();
        credentials_.rejected();
    }

  private:
    void fetch(Micros now) override { sign_if(credentials_.need(now), now); }
    void advance(Micros now) override {
        const State state = credentials_.step(now);
        if (is_fetching())
            sign_if(state, now);
    }

    void sign_if(State state, Micros now) {
        if (state == State::pending)
            return;
        if (state == State::failed)
            return fail(credentials_.error(), now);
        const AwsKeys& keys = credentials_.keys();
        const Micros unix_now = clock_.unix_now();
        const Micros left = keys.expires == never ? lifetime : keys.expires - unix_now;
        take({sign_msk_token(region_, keys, unix_now), keys.access_key_id},
             std::min(lifetime, left), now);
    }

    const std::string region_;
    AwsCredentials credentials_;
};

}  // namespace

std::unique_ptr<TokenSource> msk_token(const KafkaOptions& options, const Clock& clock) {
    return std::make_unique<MskToken>(options, clock);
}

}  // namespace outbox
