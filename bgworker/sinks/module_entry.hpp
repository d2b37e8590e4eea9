// How the functions that a sink module exports are written: nothing is thrown into the caller.
#pragma once

// In front of the function; its name stands in sink_module.map.
#define OUTBOX_MODULE_ENTRY extern "C" __attribute__((visibility("default")))

namespace outbox {

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
