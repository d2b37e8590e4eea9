// The common part of checks over HTTP. It tests that the server can be reached and that credentials
// are available, and then sends requests that change nothing, one after the other. A derived class
// makes the requests and judges their answers.
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
    // Sets the server, and the credentials of requests, or nullptr if they need none.
    void use(TransportConfig config, std::unique_ptr<Credentials> credentials = {});

    // Makes the next request. Returns false at the end. It is called when credentials are ready,
    // and may add findings without a request.
    virtual bool ask(Exchange& exchange, std::vector<Finding>& findings) = 0;
    // Judges an answer, or a missing answer. A bad finding does not end the check.
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
    HttpClient client_;  // refers to the exchange, so it must be destroyed first
};

}  // namespace outbox
