#include "core/destination.hpp"

namespace outbox {

TimeLimits time_limits(const Destination& destination) {
    const OptionValues& options = destination.options;
    const DestinationDefaults& defaults = destination.defaults;
    return {options.duration(connect_timeout_option, defaults.connect_timeout),
            options.duration(request_timeout_option, defaults.request_timeout)};
}

}  // namespace outbox
