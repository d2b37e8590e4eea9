// The keys that sign requests to AWS. They come from the user mapping or, if the destination is
// allowed to use it, from the platform of the server.
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

// Reads the environment of this process.
std::string environment_variable(const char* name);

class AwsCredentials final : public Credentials {
  public:
    // `request_timeout` is for requests to STS. All other sources answer at once.
    AwsCredentials(AwsOptions options, Micros request_timeout, const Clock& clock,
                   Environment environment = environment_variable);
    ~AwsCredentials() override;

    int descriptor() const noexcept override { return epoll_; }
    Micros deadline() const noexcept override;
    State need(Micros now) override;
    State step(Micros now) override;
    void rejected() noexcept override { rejected_ = true; }
    const std::string& error() const noexcept override { return error_; }

    // The last keys. Must not be called before the state was `ready` once.
    const AwsKeys& keys() const { return *keys_; }

  private:
    // Keys are renewed from `renew_before` their expiry on, when they are needed, and at most every
    // `renew_every`.
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

    // Only while keys are being fetched.
    std::optional<KeySource> source_;
    std::unique_ptr<Transport> transport_;
    Exchange exchange_;
    std::vector<Exchange*> done_;
};

}  // namespace outbox
