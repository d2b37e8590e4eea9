#include "sinks/connection_check.hpp"
#include "sinks/http/endpoint_options.hpp"
#include "sinks/http/http_sink.hpp"
#include "sinks/http/options.hpp"
#include "sinks/http/webhook_signature.hpp"

namespace outbox {

namespace {

void find_signature(const Result<WebhookSigner>& signer, std::vector<Finding>& findings) {
    if (!signer)
        findings.push_back({"signature", false, signer.error().message});
    else if (signer.value())
        findings.push_back({"signature", true, "requests have " + signer.value().describe()});
}

// A check of the connection, and of the keys that sign.
class HttpCheck final : public Check {
  public:
    HttpCheck(const HttpOptions& options, const Clock& clock)
        : connection_(transport_config(options.transport, clock, options.url, 1)),
          signer_(WebhookSigner::create(options.signing_secrets, options.signing_keys)) {}

    int descriptor() const noexcept override { return connection_.descriptor(); }
    Micros deadline() const noexcept override { return connection_.deadline(); }
    bool step(Micros now, std::vector<Finding>& findings) override {
        if (!connection_.step(now, findings))
            return false;
        if (!all_ok(findings))
            return true;
        find_signature(signer_, findings);
        return true;
    }

  private:
    ConnectionCheck connection_;
    const Result<WebhookSigner> signer_;
};

// A check of the secrets that sign. Endpoints are not called: there may be thousands.
class EndpointsCheck final : public Check {
  public:
    explicit EndpointsCheck(const EndpointOptions& options)
        : signer_(WebhookSigner::create(options.master_secrets, {})) {}

    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return 0; }
    bool step(Micros, std::vector<Finding>& findings) override {
        find_signature(signer_, findings);
        return true;
    }

  private:
    const Result<WebhookSigner> signer_;
};

}  // namespace

std::unique_ptr<Check> create_http_check(const CheckContext& context) {
    return std::make_unique<HttpCheck>(http_options(context.destination), context.clock);
}

std::unique_ptr<Check> create_endpoints_check(const CheckContext& context) {
    return std::make_unique<EndpointsCheck>(endpoint_options(context.destination));
}

}  // namespace outbox
