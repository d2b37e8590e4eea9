// Declares the functions that a sink module exports, and their names.
//
// pg_outbox.so stays in memory until the server restarts, but an upgrade of the package replaces
// the files of modules at once. So the names contain a hash of the headers that both sides must
// share (OUTBOX_INTERFACE, made in lib/core/CMakeLists.txt), and a module of another build is never
// called.
#pragma once

#include "outbox_interface.hpp"

#define OUTBOX_JOIN_EXPANDED(name, interface) name##_##interface
#define OUTBOX_JOIN(name, interface) OUTBOX_JOIN_EXPANDED(name, interface)
#define OUTBOX_CREATE_SINK OUTBOX_JOIN(outbox_create_sink, OUTBOX_INTERFACE)
#define OUTBOX_CREATE_CHECK OUTBOX_JOIN(outbox_create_check, OUTBOX_INTERFACE)

#define OUTBOX_TEXT_EXPANDED(text) #text
#define OUTBOX_TEXT(text) OUTBOX_TEXT_EXPANDED(text)

// Begins the definition of such a function. It must not throw.
#define OUTBOX_MODULE_ENTRY extern "C" __attribute__((visibility("default")))

namespace outbox {

constexpr const char* sink_module_entry = OUTBOX_TEXT(OUTBOX_CREATE_SINK);
constexpr const char* check_module_entry = OUTBOX_TEXT(OUTBOX_CREATE_CHECK);

// Returns the result of make(), or nullptr if it throws.
template <class Make>
auto made_by(Make make) noexcept -> decltype(make()) {
    try {
        return make();
    } catch (...) {
        return nullptr;
    }
}

}  // namespace outbox
