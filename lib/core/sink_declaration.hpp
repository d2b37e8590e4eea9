// What is known of a sink without its code, and without the library it needs.
//
// lib/sinks/<name>/options.cpp has the declaration of one; lib/sinks/sink_list.cpp names them all.
// pg_outbox.so contains the declarations. It checks options with them when the statement runs, and loads
// the sink's module when a relay or a check first needs it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/option.hpp"
#include "core/result.hpp"
#include "core/url.hpp"

namespace outbox {

class Sink;

struct SinkDeclaration {
    std::string_view name;                      // in outbox.destination_options() and in the docs
    std::span<const std::string_view> schemes;  // of its URLs, in lower case
    std::string_view url;                       // the form of its URL
    std::string_view title;                     // where events go
    std::string_view order;                     // which order events arrive in

    // Beside those that every destination has (core/destination.hpp). Hints list them in this order.
    std::span<const OptionSpec> options;
    // Parameters of the URL, where these are options. Their place is OptionPlace::url.
    std::span<const OptionSpec> parameters{};
    Url::Hosts hosts = Url::Hosts::one;  // of its URLs
    // The option that names the topic or queue of an event, which the check looks for. nullptr if all
    // events go to the same place.
    const OptionSpec* target = nullptr;

    // What Sink::capabilities() says of every destination of this sink.
    bool ordered = false;
    bool lanes = false;  // unless the target is the same for all events

    // What outbox.check_destination() tests. Where there is no module, what it says.
    std::string_view check;

    // Whether the URL can be one of this sink. `text` is the URL as it was written.
    std::optional<Error> (*check_url)(const Url& url, std::string_view text);
    // Rules between options, each of which is valid; nullptr if there are none.
    std::optional<Error> (*check_options)(const OptionValues& options) = nullptr;

    // The module has the sink, and its check. One without a module is made by `create`; one that has
    // neither has no relay: its events are fetched by outbox.fetch().
    std::string_view module{};
    std::unique_ptr<Sink> (*create)() = nullptr;

    bool is_fetched() const noexcept { return module.empty() && create == nullptr; }
};

}  // namespace outbox
