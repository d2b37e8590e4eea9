// The keys that requests to AWS are signed with: from the user mapping, or what the platform of the
// server gives, where the destination may have that.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cloud/aws/aws_options.hpp"
#include "cloud/aws/key_source.hpp"
#include "cloud/aws/sigv4.hpp"
#include "net/credentials.hpp"
#include "net/transport.hpp"

namespace outbox {

// That of this process.
std::string environment_variable(const char* name);

class AwsCredentials final : public Credentials {
  public:
    // `request_timeout`: of a request to STS. Other sources answer at once.
    AwsCredentials(AwsOptions options, Micros request_timeout, const Clock& clock,
                   Environment environment = environment_variable);
    ~AwsCredentials() override;

    int descriptor() const noexcept override { return epoll_; }
    Micros deadline() const noexcept override;
    State need(Micros now) override;
    State step(Micros now) override;
    void rejected() noexcept override { rejected_ = true; }
    const std::string& error() const noexcept override { return error_; }

    // The last there were; from when the state was ready for the first time.
    const AwsKeys& keys() const { return *keys_; }

  private:
    // They are renewed from so long before they expire, at most so often, when they are needed.
    static constexpr Micros renew_before = seconds(15 * 60);
    static constexpr Micros renew_every = seconds(60);

    bool are_usable() const;
    bool are_worth_renewing(Micros now) const;
    State state() const;

    void fetch(Micros now);
    void fetch_from_mapping();
    void fetch_from_platform();
    bool fetch_from_environment();
    bool fetch_from_file(const std::string& profile, bool required);
    bool fetch_from(std::optional<Result<KeySource>> source);
    void start(KeySource source);
    void advance();
    void take(AwsKeys keys);
    void fail(std::string why);
    void stop();

    const AwsOptions options_;
    const Micros request_timeout_;
    const Clock& clock_;
    const Environment environment_;
    int epoll_ = -1;

    std::optional<AwsKeys> keys_;
    bool rejected_ = false;
    Micros renew_at_ = never;
    std::string error_;

    // While they are being fetched.
    std::optional<KeySource> source_;
    std::unique_ptr<Transport> transport_;
    Exchange exchange_;
    std::vector<Exchange*> done_;
};

}  // namespace outbox
