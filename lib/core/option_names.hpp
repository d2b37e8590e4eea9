// Names for people of what an option is: the columns of outbox.destination_options(), which both
// editions make from the declarations of the sinks.
#pragma once

#include <string_view>

#include "core/option.hpp"

namespace outbox {

std::string_view place_name(OptionPlace place);
std::string_view type_name(const OptionSpec& spec);
std::string_view unit_of(const OptionSpec& spec);  // empty if it has none

}  // namespace outbox
