// What the server may connect to: the setting outbox.allowed_hosts, a list such as
// "example.com, *.example.org, 10.0.0.0/8, ::1".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

struct sockaddr;

namespace outbox {

// An IPv4 address is kept as the IPv6 address that means the same to the kernel: ::ffff:a.b.c.d.
struct Address {
    std::array<std::uint8_t, 16> bytes{};

    // As inet_pton() takes it: four decimal numbers, or IPv6. A zone ("%eth0") is left out.
    static std::optional<Address> parse(std::string_view text) noexcept;
    // Nothing: neither IPv4 nor IPv6.
    static std::optional<Address> of(const sockaddr& address) noexcept;

    bool is_ipv4() const noexcept;
    std::string text() const;

    bool operator==(const Address&) const = default;
};

struct Network {
    Address first;
    int bits = 0;  // of Address, also for IPv4

    // "10.0.0.0/8"; an address is a network of one.
    static std::optional<Network> parse(std::string_view text) noexcept;
    bool contains(const Address& address) const noexcept;
};

// Loopback, link-local and unspecified addresses, and those where clouds hand out credentials; also
// as an IPv6 address that stands for such an IPv4 address. Who may create destinations shall not
// reach by http what trusts the machine itself.
bool is_reserved(const Address& address) noexcept;

class AllowedHosts {
  public:
    // Names, `*.` and a name for all names below it, addresses, networks; separated by commas.
    static Result<AllowedHosts> parse(std::string_view list);

    // Nothing is said; what that means the sinks know.
    bool empty() const noexcept { return names_.empty() && networks_.empty(); }

    // `host` as the URL has it.
    bool allows(std::string_view host) const noexcept;
    bool allows(std::string_view host, const Address& address) const noexcept;

  private:
    std::vector<std::string> names_;  // without a dot at the end; with one in front: those below it
    std::vector<Network> networks_;
};

// For the status view and the log.
std::string not_allowed(const Address& address, std::string_view host);

}  // namespace outbox
