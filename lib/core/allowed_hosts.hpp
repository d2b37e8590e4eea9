// The hosts and networks that the server may connect to: the setting outbox.allowed_hosts, a list
// such as "example.com, *.example.org, 10.0.0.0/8, ::1". The entry "default" stands for what an empty
// list allows, which the kind of destination decides.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.hpp"

struct sockaddr;

namespace outbox {

// An IPv4 address is kept in the IPv6 form that means the same to the kernel: ::ffff:a.b.c.d.
struct Address {
    std::array<std::uint8_t, 16> bytes{};

    // Reads what inet_pton() reads: four decimal numbers, or IPv6. Drops a zone ("%eth0").
    static std::optional<Address> parse(std::string_view text) noexcept;
    // Returns std::nullopt if the address is neither IPv4 nor IPv6.
    static std::optional<Address> of(const sockaddr& address) noexcept;

    bool is_ipv4() const noexcept;
    std::string text() const;

    bool operator==(const Address&) const = default;
};

struct Network {
    Address first;
    int bits = 0;  // length of the prefix in `first`, of 128 bits also for IPv4

    // Reads "10.0.0.0/8". A single address is a network of one.
    static std::optional<Network> parse(std::string_view text) noexcept;
    bool contains(const Address& address) const noexcept;
};

// True for loopback, link-local and unspecified addresses, and for those where clouds hand out
// credentials, also when an IPv6 address embeds one of them. A role that may create destinations
// must not reach services over http that trust every client on the same machine.
bool is_reserved(const Address& address) noexcept;

// One such list.
class HostList {
  public:
    // The list has names, "*." before a name for all names below it, addresses, networks and the
    // word "default", separated by commas.
    static Result<HostList> parse(std::string_view list);

    bool empty() const noexcept { return !has_default_ && names_.empty() && networks_.empty(); }
    // The list is empty or has the entry "default".
    bool has_default() const noexcept { return has_default_ || empty(); }

    // True if an entry other than "default" allows it. `host` is written as in the URL.
    bool allows(std::string_view host) const noexcept;
    bool allows(std::string_view host, const Address& address) const noexcept;
    // The same, where the default is everything but reserved addresses.
    bool allows_unreserved(std::string_view host, const Address& address) const noexcept {
        return allows(host, address) || (has_default() && !is_reserved(address));
    }

  private:
    bool has_default_ = false;
    std::vector<std::string> names_;  // without a dot at the end; a leading dot stands for "*."
    std::vector<Network> networks_;
};

// The hosts that a destination may use: those that the list of the server allows. Where the process
// trusts the server less than itself, it has a limit of its own, and both must allow the host.
class AllowedHosts {
  public:
    AllowedHosts() = default;
    explicit AllowedHosts(HostList list) : list_(std::move(list)) {}
    static Result<AllowedHosts> parse(std::string_view list);

    // `place` says where the limit is written, for a refusal. The default of a limit never has
    // reserved addresses.
    void limit_to(HostList limit, std::string place);

    bool allows_unreserved(std::string_view host, const Address& address) const noexcept;
    // The same, where the default of the list of the server has reserved addresses, too.
    bool allows_reserved(std::string_view host, const Address& address) const noexcept;
    // Sockets of this machine have the name "localhost".
    bool allows_sockets() const noexcept;

    // Text for the status view and the log: what is not allowed, and which entry would allow it.
    std::string refusal(const Address& address, std::string_view host) const;
    std::string refusal_of_socket(std::string_view path) const;

  private:
    bool within_limit(std::string_view host, const Address& address) const noexcept {
        return !limit_ || limit_->allows_unreserved(host, address);
    }
    std::string advice(bool of_limit, std::string_view entry) const;

    HostList list_;
    std::optional<HostList> limit_;
    std::string place_of_limit_;
};

}  // namespace outbox
