// How the functions that a sink module exports are written, and what they are called.
//
// pg_outbox.so stays in memory until the server is restarted, while the files of modules are replaced
// when the package is upgraded. Their names carry a hash of the headers that both must agree on
// (OUTBOX_INTERFACE, made in lib/core/CMakeLists.txt), so that a module of another build is not entered.
#pragma once

#include "outbox_interface.hpp"

#define OUTBOX_JOIN_EXPANDED(name, interface) name##_##interface
#define OUTBOX_JOIN(name, interface) OUTBOX_JOIN_EXPANDED(name, interface)
#define OUTBOX_CREATE_SINK OUTBOX_JOIN(outbox_create_sink, OUTBOX_INTERFACE)
#define OUTBOX_CREATE_CHECK OUTBOX_JOIN(outbox_create_check, OUTBOX_INTERFACE)

#define OUTBOX_TEXT_EXPANDED(text) #text
#define OUTBOX_TEXT(text) OUTBOX_TEXT_EXPANDED(text)

// In front of the function. Nothing is thrown into the caller.
#define OUTBOX_MODULE_ENTRY extern "C" __attribute__((visibility("default")))

namespace outbox {

constexpr const char* sink_module_entry = OUTBOX_TEXT(OUTBOX_CREATE_SINK);
constexpr const char* check_module_entry = OUTBOX_TEXT(OUTBOX_CREATE_CHECK);

// What make() returns; nullptr: it threw.
template <class Make>
auto made_by(Make make) noexcept -> decltype(make()) {
    try {
        return make();
    } catch (...) {
        return nullptr;
    }
}

}  // namespace outbox
