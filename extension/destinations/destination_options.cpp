// outbox.destination_options(): the options that the sinks declare. The declarations are constants
// of this library, in ASCII.
#include "core/option_names.hpp"
#include "extension/base/pg.hpp"
#include "sinks/registry.hpp"

namespace outbox {

static Datum text_datum(std::string_view text) {
    return PointerGetDatum(cstring_to_text_with_len(text.data(), static_cast<int>(text.size())));
}

static Datum choices(const OptionSpec& spec) {
    StringInfoData text;
    initStringInfo(&text);
    for (std::string_view choice : spec.choices) {
        if (choice.empty())
            break;
        if (text.len > 0)
            appendStringInfoString(&text, ", ");
        appendBinaryStringInfo(&text, choice.data(), static_cast<int>(choice.size()));
    }
    return text_datum({text.data, static_cast<std::size_t>(text.len)});
}

static Datum range_of(const SinkDeclaration& sink, const OptionSpec& spec) {
    switch (spec.type) {
        case OptionType::number:
            return text_datum(psprintf("1 to " INT64_FORMAT, spec.max));
        case OptionType::duration:
            return text_datum("1ms to 24h");
        case OptionType::choice:
            return choices(spec);
        case OptionType::toggle:
            return text_datum("on, off");
        case OptionType::url:
            return text_datum(sink.url);
        case OptionType::text:
        case OptionType::name:
        case OptionType::topics:
            break;
    }
    return text_datum(spec.range);
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
