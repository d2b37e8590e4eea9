#include "net/transport_options.hpp"

namespace outbox {

static constexpr std::size_t growth_while_others_hang = 3;

TransportOptions transport_options(const Destination& destination,
                                   const OptionSpec& max_connections) {
    const TimeLimits limits = time_limits(destination);
    TransportOptions options{.allowed_hosts = destination.allowed_hosts,
                             .connect_timeout = limits.connect,
                             .request_timeout = limits.request,
                             .ca_file = destination.options.text(ca_file_option),
                             .max_connections = destination.options.number(max_connections)};
    if (!destination.options.has(max_connections))
        options.more_connections = growth_while_others_hang * options.max_connections;
    return options;
}

}  // namespace outbox
