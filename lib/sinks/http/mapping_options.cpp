#include "sinks/http/mapping_options.hpp"

namespace outbox {

std::optional<Error> check_signing_secret(const OptionSpec& spec, std::string_view value) {
    if (webhook_secret_bytes(value))
        return std::nullopt;
    return invalid_option_value(
        spec.name,
        "Write \"whsec_\" and 24 to 64 random bytes in base64. \"openssl rand -base64 32\" "
        "makes some.");
}

}  // namespace outbox
