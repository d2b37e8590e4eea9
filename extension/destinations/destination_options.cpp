// outbox.destination_options(): the options that the sinks declare. The declarations are constants
// of this library, in ASCII.
#include "core/option_names.hpp"
#include "extension/base/pg.hpp"
#include "sinks/registry.hpp"

namespace outbox {

static Datum text_datum(std::string_view text) {
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}

static Datum range_of(const SinkDeclaration& sink, const OptionSpec& spec) {
    StringInfoData range;
    initStringInfo(&range);
    append_range(spec, sink.url, [&range](std::string_view part) {
        appendBinaryStringInfo(&range, part.data(), static_cast<int>(part.size()));
    });
    return text_datum({range.data, static_cast<std::size_t>(range.len)});
}

static void put_option(ReturnSetInfo* result, const SinkDeclaration& sink, const OptionSpec& spec) {
    constexpr int columns = 8;
    const std::string_view unit = unit_of(spec);
    Datum values[columns] = {text_datum(sink.name),
                             text_datum(spec.name),
                             text_datum(place_name(spec.place)),
                             text_datum(type_name(spec)),
                             text_datum(unit),
                             range_of(sink, spec),
                             text_datum(spec.default_value),
                             text_datum(spec.description)};
    bool nulls[columns] = {};
    nulls[4] = unit.empty();
    nulls[5] = VARSIZE_ANY_EXHDR(DatumGetPointer(values[5])) == 0;
    nulls[6] = spec.default_value.empty();
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_destination_options) {
    using namespace outbox;
    InitMaterializedSRF(fcinfo, 0);
    auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    for (const SinkDeclaration* sink : all_sinks()) {
        for (const OptionSpec& spec : common_options)
            put_option(result, *sink, spec);
        for (const OptionSpec& spec : sink->options)
            put_option(result, *sink, spec);
        for (const OptionSpec& spec : sink->parameters)
            put_option(result, *sink, spec);
    }
    return Datum{0};
}
