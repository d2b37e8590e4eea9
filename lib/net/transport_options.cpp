#include "net/transport_options.hpp"

#include "core/text.hpp"

namespace outbox {

std::optional<Error> check_pem(const OptionSpec& spec, std::string_view value) {
    if (trim(value).starts_with("-----BEGIN "))
        return std::nullopt;
    return invalid_option_value(spec.name, "Give the text of a PEM file, with its first line.");
}

std::optional<std::string> wrong_client_certificate(const std::string& certificate,
                                                    const std::string& private_key, bool tls) {
    if (certificate.empty() != private_key.empty())
        return "certificate and private_key of the user mapping need each other";
    if (!certificate.empty() && !tls)
        return "a client certificate needs TLS";
    return std::nullopt;
}

static constexpr std::size_t growth_while_others_hang = 3;

TransportOptions transport_options(const Destination& destination,
                                   const OptionSpec& max_connections) {
    const TimeLimits limits = time_limits(destination);
    TransportOptions options{.allowed_hosts = destination.allowed_hosts,
                             .connect_timeout = limits.connect,
                             .request_timeout = limits.request,
                             .ca_file = destination.options.text(ca_file_option),
                             .certificate = destination.options.text(certificate_option),
                             .private_key = destination.options.text(private_key_option),
                             .max_connections = destination.options.number(max_connections)};
    if (!destination.options.has(max_connections))
        options.more_connections = growth_while_others_hang * options.max_connections;
    return options;
}

}  // namespace outbox
