#include "sinks/redis/verdict.hpp"

#include "net/redis_connection.hpp"

namespace outbox {

static bool contains(std::string_view text, std::string_view part) noexcept {
    return text.find(part) != std::string_view::npos;
}

bool is_id_refused(std::string_view error) noexcept {
    return contains(error, "equal or smaller than the target stream top item");
}

bool is_too_long(std::string_view error) noexcept {
    return error.starts_with("ERR Protocol error: invalid bulk length") ||
           error.starts_with("ERR Protocol error: invalid multibulk length");
}

namespace {

struct Known {
    std::string_view code;
    Verdict verdict;
};

constexpr Verdict throttled{.fate = Fate::throttled};
constexpr Verdict lane{.fate = Fate::unavailable, .scope = Scope::lane};
constexpr Verdict destination{.fate = Fate::unavailable, .scope = Scope::destination};
constexpr Verdict elsewhere{
    .fate = Fate::unavailable, .scope = Scope::destination, .ask_elsewhere = true};

constexpr Known known[] = {
    {"OOM", throttled},         {"BUSY", throttled},         {"TRYAGAIN", throttled},
    {"LOADING", elsewhere},     {"MASTERDOWN", elsewhere},   {"READONLY", elsewhere},
    {"MISCONF", destination},   {"NOREPLICAS", destination}, {"NOAUTH", destination},
    {"WRONGPASS", destination}, {"DENIED", destination},     {"WRONGTYPE", lane},
    {"CROSSSLOT", lane},
};

}  // namespace

// Returns the reason of an EXEC that was refused as a whole, which is an error by itself.
static std::string_view innermost(std::string_view error) noexcept {
    constexpr std::string_view outer = "EXECABORT Transaction discarded because of: ";
    if (error.starts_with(outer))
        error.remove_prefix(outer.size());
    if (error.starts_with('-'))
        error.remove_prefix(1);
    return error;
}

Verdict verdict_of(std::string_view error) noexcept {
    error = innermost(error);
    for (const Known& one : known)
        if (has_code(error, one.code))
            return one.verdict;
    if (has_code(error, "CLUSTERDOWN"))  // for one slot, or for all
        return contains(error, "slot not served") ? lane : destination;
    if (has_code(error, "NOPERM"))  // for a key, or for a command
        return contains(error, " key") ? lane : destination;
    if (contains(error, "exhausted the last possible ID"))
        return lane;
    if (contains(error, "unknown command") || contains(error, "unknown subcommand"))
        return destination;
    if (contains(error, "max number of clients"))
        return {.fate = Fate::unavailable, .scope = Scope::connection};
    return {};
}

}  // namespace outbox
