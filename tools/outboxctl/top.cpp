// outboxctl top: destinations and consumers as they work, with their rates.
#include <langinfo.h>
#include <unistd.h>
#include <clocale>
#include <cmath>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <curses.h>

#include "commands.hpp"
#include "figures.hpp"
#include "table.hpp"

namespace outboxctl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int milliseconds_between_looks = 1000;
constexpr std::size_t sparkline_width = 30;  // looks

// Restores the terminal, also when an exception leaves.
class Screen {
  public:
    Screen() {
        std::setlocale(LC_ALL, "");
        unicode_ = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
        initscr();
        curs_set(0);
        noecho();
        timeout(milliseconds_between_looks);  // of getch()
    }
    ~Screen() { endwin(); }
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;

    bool unicode() const { return unicode_; }

  private:
    bool unicode_ = false;
};

// The rates of one counter, the latest last.
class Rates {
  public:
    void look(double counter, Clock::time_point now) {
        // A counter that has fallen has started again from 0.
        if (known_) {
            const double seconds = std::chrono::duration<double>(now - at_).count();
            rates_.push_back(counter < counter_ ? 0 : (counter - counter_) / seconds);
        }
        if (rates_.size() > sparkline_width)
            rates_.pop_front();
        counter_ = counter;
        at_ = now;
        known_ = true;
    }

    double latest() const { return rates_.empty() ? 0 : rates_.back(); }

    // A character for each rate, as high as its share of the highest.
    std::string sparkline(bool unicode) const {
        static constexpr const char* blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
        static constexpr const char* letters[] = {" ", ".", ".", ":", "-", "=", "+", "*", "#"};
        const double most = rates_.empty() ? 0 : *std::max_element(rates_.begin(), rates_.end());
        std::string line(sparkline_width - rates_.size(), ' ');
        for (const double rate : rates_) {
            const auto height = static_cast<std::size_t>(most > 0 ? std::ceil(rate / most * 8) : 0);
            line += unicode ? blocks[height] : letters[height];
        }
        return line;
    }

  private:
    double counter_ = 0;
    Clock::time_point at_{};
    bool known_ = false;
    std::deque<double> rates_;
};

class Top {
  public:
    explicit Top(const std::vector<std::string>& databases) {
        for (const std::string& database : databases) {
            sessions_.emplace_back();
            sessions_.back().use(database);
            sessions_.back().connection();  // or its error, before the screen is cleared
        }
    }

    void run() {
        screen_.emplace();
        int key = 0;
        while (key != 'q' && key != 'Q') {
            erase();
            line_ = 0;
            for (Session& session : sessions_)
                look(session);
            refresh();
            key = getch();
        }
    }

  private:
    void look(Session& session) {
        if (line_ > 0)
            line_++;
        try {
            const Result head = session.query(
                "SELECT current_database(), to_char(clock_timestamp(), 'HH24:MI:SS')");
            print(std::string(head.text(0, 0)) + "  " + std::string(head.text(0, 1)) +
                  "  (q ends it)");
            if (session.has("outbox"))
                section(session, "DESTINATION",
                        rows_of(session, figures_of_destinations, "outbox.status"));
            if (session.has("inbox"))
                section(session, "CONSUMER",
                        rows_of(session, figures_of_consumers, "inbox.status"));
        } catch (const Refused& error) {
            // The server may be restarting.
            print(error.what());
            session.use(std::string(session.database()));
        }
    }

    static Result rows_of(Session& session, const std::string& columns, const std::string& view) {
        return session.query("SELECT " + columns + " FROM " + view + " ORDER BY 1");
    }

    void section(const Session& session, const char* title, const Result& rows) {
        const Clock::time_point now = Clock::now();
        line_++;
        attron(A_REVERSE);
        format(title, "STATE", "EVENTS/S", std::string(sparkline_width, ' '), "TOTAL", "WAITING",
               "KEYS", "OLDEST", "P50 MS", "P99 MS", "LAST ERROR");
        attroff(A_REVERSE);
        for (int row = 0; row < rows.rows(); row++) {
            const auto text = [&](int column) { return printable(rows.text(row, column)); };
            Rates& rates = rates_[{&session, title + text(0)}];
            rates.look(std::stod(text(2)), now);
            format(text(0), text(1), std::to_string(std::llround(rates.latest())),
                   rates.sparkline(screen_->unicode()), text(2), text(3), text(4), text(5), text(6),
                   text(7), text(8));
        }
    }

    static std::string left(const std::string& text, std::size_t width) {
        return text.size() >= width ? text.substr(0, width)
                                    : text + std::string(width - text.size(), ' ');
    }
    static std::string right(const std::string& text, std::size_t width) {
        return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
    }

    void format(const std::string& name, const std::string& state, const std::string& rate,
                const std::string& sparkline, const std::string& total, const std::string& waiting,
                const std::string& keys, const std::string& oldest, const std::string& p50,
                const std::string& p99, const std::string& error) {
        print(left(name, 20) + ' ' + left(state, 13) + right(rate, 9) + ' ' + sparkline +
              right(total, 12) + right(waiting, 10) + right(keys, 6) + right(oldest, 10) +
              right(p50, 9) + right(p99, 9) + "  " + error);
    }

    void print(const std::string& text) {
        if (line_ < LINES)
            mvaddnstr(line_++, 0, text.c_str(), -1);
    }

    std::deque<Session> sessions_;  // a session cannot be moved
    std::optional<Screen> screen_;
    int line_ = 0;
    std::map<std::pair<const Session*, std::string>, Rates> rates_;
};

void run(Session& session) {
    if (session.json || isatty(STDOUT_FILENO) == 0)
        throw WrongUsage("top needs a terminal; status --watch --json does not");
    std::vector<std::string> databases = session.take_databases();
    Top(databases).run();
}

}  // namespace

void add_top_command(Command app, Session& session) {
    add_command<NoArguments>(
        app, "top", "Shows destinations and consumers as they work, with rates and latencies.",
        "  outboxctl top\n"
        "  outboxctl top -d shop -d billing\n",
        [](Command, NoArguments&) {}, [&session](const NoArguments&) { run(session); });
}

}  // namespace outboxctl
