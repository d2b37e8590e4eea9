#include "redis/session.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/late.hpp"
#include "core/text.hpp"

namespace inbox::redis {

using outbox::Micros;
using outbox::RedisConnection;
using outbox::RespValue;
using outbox::StreamId;
using Text = std::string_view;

// After this many refusals in a row the source fails.
static constexpr int max_refusals = 3;
static constexpr int max_created = 3;
static constexpr unsigned max_redirects = 8;
static constexpr std::size_t max_ids = 1000;  // of a command
// A server that answers but does not read must not make commands pile up.
static constexpr std::size_t max_unsent = 1024 * 1024;

// Time for which XREADGROUP blocks. A stop waits for it, and so do acknowledgements while entries
// are held.
static constexpr std::int64_t max_block_ms = 500, short_block_ms = 50;

// An answer is kept up to this size. A larger entry cannot be received completely.
static constexpr std::size_t max_answer = 64 * 1024 * 1024 + 64 * 1024;
static constexpr outbox::RespReader::Limits limits{
    .text = max_answer, .elements = 200'000, .fields = 100'000, .bytes = max_answer};
// If this many bytes wait to be handed out, nothing more is read.
static constexpr std::size_t max_waiting_bytes = 64 * 1024 * 1024;
static constexpr std::size_t page_bytes = 4 * 1024 * 1024;
static constexpr std::size_t first_page = 16;  // their size is not known yet
static constexpr std::size_t max_page = 1000;

std::string subscription_of(const std::string& stream, const std::string& group) {
    return "redis://" + stream + '/' + group;
}

std::string Handle::text() const {
    return std::to_string(session) + ' ' + std::to_string(generation) + ' ' + id.text();
}

std::optional<Handle> Handle::parse(std::string_view text) {
    const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
    if (first == Text::npos || second == Text::npos)
        return std::nullopt;
    const auto session = outbox::parse_integer(text.substr(0, first));
    const auto generation = outbox::parse_integer(text.substr(first + 1, second - first - 1));
    const auto id = StreamId::parse(text.substr(second + 1));
    if (!session || !generation || !id || *session < 0)
        return std::nullopt;
    return Handle{static_cast<std::size_t>(*session), static_cast<std::uint64_t>(*generation), *id};
}

Session::Session(const Setup& setup, std::size_t number, const outbox::Clock& clock, int epoll)
    : setup_(setup),
      number_(number),
      stream_(setup.streams[number]),
      source_(subscription_of(stream_, setup.group)),
      clock_(clock),
      epoll_(epoll),
      claims_(setup.min_idle / 3),
      pauses_(setup.retry_base, setup.retry_max, outbox::random_seed()),
      page_(first_page) {
    server_ = first_server();
}

Micros Session::deadline() const noexcept {
    return connection_ ? connection_->deadline() : outbox::never;
}

// ---------------------------------------------------------------------------------------------
// Positions
// ---------------------------------------------------------------------------------------------

void Session::load(const Position& saved) {
    was_there_ = true;
    saved_at_ = saved.published_at;
    if (const std::optional<StreamId> id = StreamId::parse(saved.message_id))
        highest_ = *id;
}

// Entries may have no time, or one before that of the last position, which would not be saved.
Position Session::position_of(const Delivery& delivery) {
    const Time now(std::chrono::microseconds(clock_.unix_now()));
    const Time time = delivery.published_at == Time{} ? now : delivery.published_at;
    saved_at_ = std::max(time, saved_at_ + std::chrono::microseconds(1));
    return {source_, delivery.message_id, saved_at_, {}};
}

// ---------------------------------------------------------------------------------------------
// Connections
// ---------------------------------------------------------------------------------------------

Session::Server Session::first_server() const {
    const auto& [host, port] = setup_.hosts[begin_with_];
    return {host, port, !setup_.sentinel.empty(), false};
}

void Session::connect(Micros now) {
    connection_.emplace(outbox::stream_config(setup_.transport, clock_, server_.host, server_.port,
                                              setup_.tls, "redis"),
                        server_.is_sentinel ? setup_.sentinel_login : setup_.login, limits);
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, connection_->descriptor(), &event);
    stage_ = Stage::connecting;
    connection_->open(now);
}

// Acknowledgements without an answer are sent again over the next connection. It first reads what
// is pending, which extends the claims.
void Session::disconnect() {
    connection_.reset();
    stage_ = Stage::disconnected;
    for (auto question = questions_.rbegin(); question != questions_.rend(); ++question)
        if (question->kind == Question::Kind::ack)
            claims_.again(question->ids);
        else if (question->kind == Question::Kind::extend ||
                 question->kind == Question::Kind::owner)
            claims_.extended(question->ids, clock_.now());
    claims_.extended({missed_.begin(), missed_.end()}, clock_.now());
    missed_.clear();
    questions_.clear();
    trouble_.clear();
    redirect_.reset();
    group_is_missing_ = false;
}

void Session::pause(Micros now) {
    connect_at_ = now + pauses_.next();
}

void Session::lost(std::string why, bool is_refusal, Micros now) {
    disconnect();
    pause(now);
    begin_with_ = (begin_with_ + 1) % setup_.hosts.size();
    server_ = first_server();
    redirects_ = 0;
    refusals_ = is_refusal ? refusals_ + 1 : 0;
    const std::string text = about(why);
    if (!is_known_)
        failure_ = {text, has_worked_ || !is_refusal};
    else if (refusals_ >= max_refusals)
        failure_ = {text, has_worked_};
    else
        note(Level::warning, text);
    if (failure_)
        is_known_ = false;
}

// Returns true if only other options would help to connect. A redirect by a node of a cluster may
// be wrong for a while, so a failure after one does not count.
bool Session::is_refused() const {
    const bool is_given = !setup_.sentinel.empty() || server_ == first_server();
    return is_given && connection_->scope() == outbox::Scope::destination;
}

void Session::follow(const outbox::Redirect& redirect, Micros now) {
    const Server server{redirect.host.empty() ? server_.host : redirect.host, redirect.port, false,
                        redirect.ask};
    if (++redirects_ > max_redirects) {
        lost("too many redirects; the last one is to " + server.host + ':' + server.port, false,
             now);
        return;
    }
    disconnect();
    server_ = server;
    connect_at_ = now;
}

void Session::ready(Micros now) {
    if (server_.is_sentinel) {
        stage_ = Stage::asking;
        ask({.kind = Question::Kind::primary}, Text("SENTINEL"), Text("get-master-addr-by-name"),
            Text(setup_.sentinel));
    } else if (!must_create_) {
        begin(now);
    } else {
        create_group();
    }
}

void Session::create_group() {
    const bool is_again = has_worked_ || was_there_;
    const std::string from = is_again ? "0" : setup_.create_group_from;
    note(is_again ? Level::error : Level::info,
         about((is_again ? "the consumer group has gone; creating it again from "
                         : "creating the consumer group from ") +
               from));
    stage_ = Stage::asking;
    ask({.kind = Question::Kind::create}, Text("XGROUP"), Text("CREATE"), Text(stream_),
        Text(setup_.group), Text(from), Text("MKSTREAM"));
}

void Session::begin(Micros now) {
    stage_ = Stage::working;
    in_history_ = true;
    history_from_ = {};
    claim_from_ = {};
    claim_at_ = now;
}

// The group is part of the stream: either it was deleted alone, or both were. What this process
// holds comes again only if the stream is there.
void Session::group_has_gone(Micros now) {
    if (setup_.create_group_from.empty()) {
        lost("NOGROUP: there is no such stream or consumer group", true, now);
    } else {
        must_create_ = true;
        disconnect();
        pause(now);
    }
    if ((has_worked_ || was_there_) && !std::exchange(is_gone_, true))
        recreated("the consumer group has gone, and perhaps the stream with it");
}

void Session::recreated(const std::string& why) {
    claims_.begin_generation();
    highest_ = {};
    gaps_.push_back({.subscription = source_, .why = why, .recreated = true});
    if (setup_.on_recreated == OnRecreated::stop)
        failure_ = {about(why + "; start once with on_recreated = begin_again"), false};
    else
        note(Level::warning, about(why));
}

// ---------------------------------------------------------------------------------------------
// Sending
// ---------------------------------------------------------------------------------------------

// The command of the question must follow.
void Session::put(Question question) {
    question.due = clock_.now() + setup_.transport.request_timeout + max_block_ms * 1000;
    if (server_.asks) {
        outbox::append_command_of(connection_->output(), Text("ASKING"));
        questions_.push_back({.kind = Question::Kind::asking, .due = question.due});
    }
    questions_.push_back(std::move(question));
}

template <class... Arguments>
void Session::ask(Question question, const Arguments&... arguments) {
    put(std::move(question));
    outbox::append_command_of(connection_->output(), arguments...);
}

// XACK, or XCLAIM for this consumer.
void Session::ask_about(Question::Kind kind, const Claims::Ids& ids) {
    put({.kind = kind, .ids = ids});
    std::string& out = connection_->output();
    const bool gives_back = kind == Question::Kind::give_back;
    const std::size_t before = kind == Question::Kind::ack ? 3 : 5;
    const std::size_t behind = kind == Question::Kind::ack ? 0 : gives_back ? 3 : 1;
    outbox::append_command(out, before + ids.size() + behind);
    outbox::append_argument(out, Text(kind == Question::Kind::ack ? "XACK" : "XCLAIM"));
    outbox::append_argument(out, Text(stream_));
    outbox::append_argument(out, Text(setup_.group));
    if (kind != Question::Kind::ack) {
        outbox::append_argument(out, Text(setup_.consumer));
        outbox::append_argument(out, gives_back ? 0 : claims_.least_age() / 1000);
    }
    for (const StreamId id : ids)
        outbox::append_argument(out, Text(id.text()));
    if (gives_back) {  // to the next consumer that takes over entries
        outbox::append_argument(out, Text("IDLE"));
        outbox::append_argument(out, setup_.min_idle / 1000);
    }
    if (kind != Question::Kind::ack)
        outbox::append_argument(out, Text("JUSTID"));
}

// XCLAIM leaves out entries of other consumers, and those that have left the stream.
void Session::ask_for_owners() {
    for (const StreamId id : missed_)
        ask({.kind = Question::Kind::owner, .ids = {id}}, Text("XPENDING"), Text(stream_),
            Text(setup_.group), Text(id.text()), Text(id.text()), Text("1"));
    missed_.clear();
}

bool Session::is_asked(Question::Kind kind) const noexcept {
    return std::any_of(questions_.begin(), questions_.end(),
                       [&](const Question& question) { return question.kind == kind; });
}

// Returns the number of entries that may be asked for.
std::size_t Session::room() const {
    std::size_t expected = claims_.waiting();
    for (const Question& question : questions_)
        expected += question.count;
    if (expected > setup_.prefetch / 2 || claims_.waiting_bytes() >= max_waiting_bytes)
        return 0;
    return std::min(page_, setup_.prefetch - expected);
}

void Session::read(std::size_t room) {
    const Question question{.kind = in_history_ ? Question::Kind::history : Question::Kind::news,
                            .count = in_history_ && reads_one_ ? 1 : room};
    const auto count = static_cast<std::int64_t>(question.count);
    const std::string from = in_history_ ? history_from_.text() : ">";
    const bool is_short = claims_.held() > 0 || !questions_.empty();
    const auto ask_with = [&](auto... block) {
        ask(question, Text("XREADGROUP"), Text("GROUP"), Text(setup_.group), Text(setup_.consumer),
            Text("COUNT"), count, block..., Text("STREAMS"), Text(stream_), Text(from));
    };
    if (is_taking_over())  // the next page must not wait behind a read that blocks
        ask_with();
    else
        ask_with(Text("BLOCK"), is_short ? short_block_ms : max_block_ms);
}

// Returns true while there are more pages of entries that may be taken over.
bool Session::is_taking_over() const noexcept {
    return claim_from_ != StreamId{} || is_asked(Question::Kind::claim);
}

void Session::claim(std::size_t room) {
    ask({.kind = Question::Kind::claim, .count = room}, Text("XAUTOCLAIM"), Text(stream_),
        Text(setup_.group), Text(setup_.consumer), setup_.min_idle / 1000, Text(claim_from_.text()),
        Text("COUNT"), static_cast<std::int64_t>(room));
}

Micros Session::converse(Micros now) {
    using Kind = Question::Kind;
    if (connection_->unsent() > max_unsent)
        return outbox::never;
    for (Claims::Ids ids = claims_.next_acks(max_ids); !ids.empty();
         ids = claims_.next_acks(max_ids))
        ask_about(Kind::ack, ids);
    if (is_closing_) {
        if (const std::size_t count = claims_.last_copies(); count > 0)
            note(Level::warning, about(std::to_string(count) +
                                       " entries that only this process had were not applied"));
        const Claims::Ids ids = claims_.give_back_all();
        for (std::size_t at = 0; at < ids.size(); at += max_ids)
            ask_about(Kind::give_back,
                      Claims::Ids(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                  ids.begin() + static_cast<std::ptrdiff_t>(
                                                    std::min(ids.size(), at + max_ids))));
        return outbox::never;
    }
    if (failure_)
        return outbox::never;
    ask_for_owners();
    const bool is_touching = is_asked(Kind::history) || is_asked(Kind::claim);
    if (!is_touching)
        for (Claims::Ids ids = claims_.next_extensions(max_ids, now); !ids.empty();
             ids = claims_.next_extensions(max_ids, now))
            ask_about(Kind::extend, ids);
    if (const std::size_t most = room();
        most > 0 && !in_history_ && !is_touching && now >= claim_at_)
        claim(most);
    const bool may_read = !is_asked(Kind::news) && !(in_history_ && is_touching);
    if (const std::size_t most = room(); most > 0 && may_read && !is_asked(Kind::history))
        read(most);
    return is_touching ? outbox::never : claims_.next_extension();
}

// ---------------------------------------------------------------------------------------------
// The thread's turns
// ---------------------------------------------------------------------------------------------

void Session::step(Micros now) {
    if (!connection_)
        return;
    connection_->step(now);
    if (connection_->state() != RedisConnection::State::ready)
        return;
    while (trouble_.empty() && !redirect_ && !group_is_missing_) {
        const RespValue* answer = connection_->next_answer();
        if (answer == nullptr)
            return;
        take(*answer);
    }
}

// Under the mutex.
void Session::enter(Micros now) {
    claims_.confirmed(std::exchange(confirmed_, {}));
    claims_.lost(std::exchange(lost_, {}));
    claims_.extended(std::exchange(extended_, {}), now);
    claims_.again(std::exchange(unsent_, {}));
    enter_deleted();
    if (const Claims::Ids kept = std::exchange(kept_, {}); !kept.empty()) {
        claims_.keep(kept);
        note(Level::warning, about(std::to_string(kept.size()) +
                                   " entries that this process holds were deleted from the stream "
                                   "or the group; it is the last one that can apply them"));
    }
    if (const std::string why = std::exchange(went_back_, {}); !why.empty())
        recreated(why);
    if (failure_)
        arrived_.clear();  // they stay pending
    for (auto& [id, delivery] : std::exchange(arrived_, {})) {
        delivery.handle = Handle{number_, claims_.generation(), id}.text();
        claims_.add(id, std::move(delivery), now);
    }
}

// An entry that this process has in memory is still applied. Others are skipped.
void Session::enter_deleted() {
    std::uint64_t skipped = 0;
    for (const StreamId id : std::exchange(deleted_, {}))
        if (claims_.holds(id)) {
            kept_.push_back(id);
        } else {
            claims_.ack(id);
            skipped++;
        }
    gone_ += skipped;
    if (gone_ == noted_gone_ || is_taking_over())
        return;  // one line for all pages of entries that are taken over
    skipped = gone_ - std::exchange(noted_gone_, gone_);
    const std::string what =
        " pending entries were deleted from the stream before they were "
        "acknowledged";
    note(Level::warning, about(std::to_string(skipped) + what + " (" + std::to_string(gone_) +
                               " since the start)"));
    gaps_.push_back(
        {.subscription = source_, .why = std::to_string(skipped) + what, .skipped = skipped});
}

Micros Session::work(Micros now) {
    enter(now);
    if (std::exchange(has_read_, false) && !failure_)
        is_known_ = true;
    if (redirect_)
        follow(*std::exchange(redirect_, std::nullopt), now);
    else if (!trouble_.empty())
        lost(std::exchange(trouble_, {}), is_refusal_, now);
    else if (group_is_missing_ && created_ >= max_created)
        lost("the consumer group is missing right after it was created", false, now);
    else if (group_is_missing_)
        group_has_gone(now);
    else if (connection_ && connection_->state() == RedisConnection::State::closed)
        lost(connection_->failure(), is_refused(), now);
    else if (!questions_.empty() && now >= questions_.front().due)
        lost(outbox::no_answer_within(setup_.transport.request_timeout), false, now);

    const bool is_wanted = is_closing_ ? claims_.has_acks() || claims_.held() > 0 : !failure_;
    if (stage_ == Stage::disconnected) {
        if (!is_wanted)
            return outbox::never;
        if (now < connect_at_)
            return connect_at_;
        connect(now);
    }
    if (connection_->state() != RedisConnection::State::ready)
        return outbox::never;  // the connection has a deadline of its own
    if (stage_ == Stage::connecting)
        ready(now);
    Micros until = stage_ == Stage::working ? converse(now) : outbox::never;
    connection_->flush();
    if (!questions_.empty())
        until = std::min(until, questions_.front().due);
    return until;
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

void Session::malformed(const char* command) {
    trouble_ = std::string("the answer to ") + command + " is not understood";
    is_refusal_ = false;
}

void Session::take(const RespValue& answer) {
    if (questions_.empty()) {  // not an answer to a question
        trouble_ = answer.is_error() ? answer.text : "unexpected answer";
        is_refusal_ = false;
        return;
    }
    Question question = std::move(questions_.front());
    questions_.pop_front();
    if (answer.is_error()) {
        take_error(question, answer.text);
        return;
    }
    switch (question.kind) {
        case Question::Kind::primary:
            take_primary(answer);
            break;
        case Question::Kind::create:
            take_created();
            break;
        case Question::Kind::asking:
        case Question::Kind::give_back:
            break;
        case Question::Kind::history:
        case Question::Kind::news:
            take_entries(question, answer);
            break;
        case Question::Kind::ack:
            confirmed_.insert(confirmed_.end(), question.ids.begin(), question.ids.end());
            break;
        case Question::Kind::extend:
            take_extended(question.ids, answer);
            break;
        case Question::Kind::claim:
            take_claimed(answer);
            break;
        case Question::Kind::owner:
            take_owner(question.ids.front(), answer);
            break;
    }
}

// Returns true if the server refuses, and will refuse again unless something changes.
static bool is_refusal(Text error) {
    constexpr Text codes[] = {"NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE", "NOGROUP", "ERR"};
    return error.find("max number of clients") == Text::npos &&
           std::any_of(std::begin(codes), std::end(codes),
                       [&](Text code) { return outbox::has_code(error, code); });
}

void Session::take_error(const Question& question, const std::string& error) {
    if (question.kind == Question::Kind::ack)
        unsent_.insert(unsent_.end(), question.ids.begin(), question.ids.end());
    if (question.kind == Question::Kind::extend || question.kind == Question::Kind::owner)
        extended_.insert(extended_.end(), question.ids.begin(), question.ids.end());
    if (question.kind == Question::Kind::owner && outbox::has_code(error, "NOPERM")) {
        // If another consumer has it, one of the two finds a duplicate.
        kept_.insert(kept_.end(), question.ids.begin(), question.ids.end());
        return;
    }
    if (question.kind == Question::Kind::create && outbox::has_code(error, "BUSYGROUP")) {
        take_created();  // another consumer was first
        return;
    }
    redirect_ = outbox::parse_redirect(error);
    if (redirect_)
        return;
    if (outbox::has_code(error, "NOGROUP") &&
        (!setup_.create_group_from.empty() || has_worked_ || was_there_)) {
        group_is_missing_ = true;
        return;
    }
    trouble_ = error.empty() ? "an error without a text" : error;
    is_refusal_ = is_refusal(error);
}

void Session::take_primary(const RespValue& answer) {
    redirect_ = outbox::parse_primary(answer);
    if (redirect_)
        return;
    trouble_ = "Sentinel knows no primary \"" + setup_.sentinel + '"';
    is_refusal_ = true;
}

void Session::take_created() {
    must_create_ = false;
    created_++;
    begin(clock_.now());
}

void Session::take_entries(const Question& question, const RespValue& answer) {
    const std::optional<Entries> found = entries_read(answer);
    if (!found) {
        malformed("XREADGROUP");
        return;
    }
    has_read_ = has_worked_ = true;
    is_gone_ = false;
    refusals_ = created_ = 0;
    redirects_ = 0;
    pauses_.reset();
    learn_page(*found);
    if (question.kind == Question::Kind::history) {
        take_history(question, *found);
        return;
    }
    look_for_order(*found);
    const StreamId last = add(*found, question.count, {});
    if (found->is_cut)
        read_again_behind(last);
}

// Asks for as many entries as page_bytes hold, by the size of those that have come.
void Session::learn_page(const Entries& found) {
    if (const std::size_t count = found.entries.size() + found.gone.size(); count > 0)
        page_ = std::clamp(page_bytes / (connection_->answer_bytes() / count + 1), std::size_t{1},
                           max_page);
}

// A group only goes forward, so an id that is not higher than the ones before is of another stream.
// Entries that were noted before this answer belong to the old one.
void Session::look_for_order(const Entries& found) {
    if (found.entries.empty())
        return;
    if (const StreamId first = found.entries.front().id; first <= highest_)
        went_back_ = "new entry " + first.text() + " has come after " + highest_.text() +
                     ": the stream or the group was made again, or the group was moved back";
    highest_ = found.entries.back().id;
}

void Session::take_history(const Question& question, const Entries& found) {
    reads_one_ = false;
    if (found.entries.empty()) {
        in_history_ = false;
        return;
    }
    history_from_ = add(found, question.count, history_from_);
}

// Notes entries for work(). Returns their last id, or `from` if there are none.
StreamId Session::add(const Entries& found, std::size_t asked, StreamId from) {
    deleted_.insert(deleted_.end(), found.gone.begin(), found.gone.end());
    for (const Entry& entry : found.entries) {
        if (entry.is_cut && asked > 1) {
            read_again_behind(entry.id.previous().value_or(StreamId{}));
            break;
        }
        if (entry.is_cut) {
            note(Level::error,
                 about("entry " + entry.id.text() +
                       " is too large to be received; it stays in the list of pending entries"));
        } else if (entry.fields == nullptr) {
            deleted_.push_back(entry.id);
        } else {
            arrived_.emplace_back(entry.id, delivery_from(entry, source_, stream_));
        }
        from = entry.id;
    }
    return from;
}

// Entries behind this id are pending for this consumer, and were not received completely.
void Session::read_again_behind(StreamId id) {
    history_from_ = in_history_ ? std::min(history_from_, id) : id;
    in_history_ = true;
    reads_one_ = true;
}

void Session::take_claimed(const RespValue& answer) {
    const std::optional<Entries> found = entries_claimed(answer);
    if (!found) {
        malformed("XAUTOCLAIM");
        return;
    }
    learn_page(*found);
    const StreamId last = add(*found, 2, claim_from_);
    if (found->is_cut)
        read_again_behind(last);
    claim_from_ = found->next;
    if (claim_from_ == StreamId{}) {
        const Micros half = setup_.min_idle / 2;  // not all consumers at the same time
        const auto part = outbox::random_seed() % static_cast<std::uint64_t>(half / 2);
        claim_at_ = clock_.now() + half / 2 + static_cast<Micros>(part);
    }
}

void Session::take_extended(const Claims::Ids& ids, const RespValue& answer) {
    const std::optional<Claims::Ids> found = ids_in(answer);
    if (!found) {
        malformed("XCLAIM");
        extended_.insert(extended_.end(), ids.begin(), ids.end());
        return;
    }
    const std::set<StreamId> extended(found->begin(), found->end());
    for (const StreamId id : ids)
        if (extended.contains(id))
            extended_.push_back(id);
        else
            missed_.insert(id);
}

// [[id, consumer, ...]], or an empty array if the entry is pending for nobody.
void Session::take_owner(StreamId id, const RespValue& answer) {
    if (!answer.is_array()) {
        malformed("XPENDING");
        return;
    }
    const RespValue* const entry = answer.at(0);
    const RespValue* const owner = entry != nullptr ? entry->at(1) : nullptr;
    if (owner == nullptr)
        kept_.push_back(id);
    else if (owner->text == setup_.consumer)
        extended_.push_back(id);
    else
        lost_.push_back(id);
}

}  // namespace inbox::redis
