// The declaration of a sink: facts that are known without its code and the library it needs.
//
// lib/sinks/<name>/options.cpp declares a sink; lib/sinks/sink_list.cpp lists all of them.
// pg_outbox.so contains the declarations, checks options with them when the statement runs, and
// loads the sink's module when a relay or a check first needs it.
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
    std::string_view order;                     // the order in which events arrive

    // Options besides those of every destination (core/destination.hpp), in the order of hints.
    std::span<const OptionSpec> options;
    // Parameters of the URL that are options. Their place is OptionPlace::url.
    std::span<const OptionSpec> parameters{};
    Url::Hosts hosts = Url::Hosts::one;  // a URL may name one or several
    // The option that names the topic or queue of an event, for the check. nullptr if all events go
    // to the same place.
    const OptionSpec* target = nullptr;

    // Equal to Sink::capabilities() for every destination of this sink.
    bool ordered = false;
    bool lanes = false;  // unless the target is the same for all events

    // The tests of outbox.check_destination(), in words. Without a module, it shows this text.
    std::string_view check;

    // Checks whether the URL is valid for this sink. `text` is the URL as it was written.
    std::optional<Error> (*check_url)(const Url& url, std::string_view text);
    // Checks rules between options that are valid on their own; nullptr if there are none.
    std::optional<Error> (*check_options)(const OptionValues& options) = nullptr;

    // The library that contains the sink and its check. A sink without a module is made by
    // `create`. A destination with neither has no relay: its events are fetched with
    // outbox.fetch().
    std::string_view module{};
    std::unique_ptr<Sink> (*create)() = nullptr;

    bool is_fetched() const noexcept { return module.empty() && create == nullptr; }
};

}  // namespace outbox
