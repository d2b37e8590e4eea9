// What checks over HTTP share: the server can be reached, the credentials can be had, and then
// requests that change nothing, one after the other. Whoever derives from it says which requests,
// and what their answers mean.
#pragma once

#include <memory>
#include <vector>

#include "core/check.hpp"
#include "net/http_client.hpp"
#include "sinks/connection_check.hpp"

namespace outbox {

class RequestCheck : public Check {
  public:
    int descriptor() const noexcept final { return client_.descriptor(); }
    Micros deadline() const noexcept final;
    bool step(Micros now, std::vector<Finding>& findings) final;

  protected:
    // Where to, and nullptr or what to show there.
    void use(TransportConfig config, std::unique_ptr<Credentials> credentials = {});

    // Makes the next request; false: that was all. It is called when the credentials are ready, and
    // may know some things without asking.
    virtual bool ask(Exchange& exchange, std::vector<Finding>& findings) = 0;
    // What the answer means, or that there is none. A bad finding does not end the check.
    virtual void judge(const Exchange& exchange, std::vector<Finding>& findings) = 0;

  private:
    enum class Stage { reaching, credentials, asking, done };

    void reach(Micros now, std::vector<Finding>& findings);
    void get_credentials(Credentials::State state, std::vector<Finding>& findings);
    void ask_next(std::vector<Finding>& findings);
    void take_answer(Micros now, std::vector<Finding>& findings);

    Stage stage_ = Stage::reaching;
    std::unique_ptr<ConnectionCheck> connection_;
    std::unique_ptr<Exchange> exchange_;
    std::vector<Exchange*> answered_;
    HttpClient client_;  // holds the exchange, so it goes before it
};

}  // namespace outbox
