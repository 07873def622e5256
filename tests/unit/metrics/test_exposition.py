from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Metric
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import exposition as untyped_exposition
from prometheus_client.openmetrics import parser as untyped_parser
from prometheus_client.registry import Collector

from ai.backend.kvcache.metrics.exposition import Sample, read_samples

# prometheus_client has no types for these.
openmetrics_parser: Any = untyped_parser
openmetrics_exposition: Any = untyped_exposition

PAGES = [
    "vllm-0.20_lmcache-0.4.4_inprocess",
    "vllm-0.20_lmcache-mp-0.4.6_engine",
    "vllm-0.32_lmcache-0.5.6_inprocess",
    "vllm-0.32_lmcache-mp-0.5.6_engine",
    "vllm-0.32_lmcache-mp-0.5.6_server",
    "vllm-0.32_no-offload",
]

Bag = Counter[tuple[str, frozenset[tuple[str, str]], float | str]]


def bag(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Bag:
    """To compare samples whatever their order; NaN equals NaN."""
    return Counter(
        (name, frozenset(labels.items()), "NaN" if math.isnan(value) else float(value))
        for name, labels, value in samples
    )


def flat(families: Iterable[Metric]) -> list[Sample]:
    return [Sample(s.name, s.labels, s.value) for family in families for s in family.samples]


def by_text_parser(page: str) -> list[Sample]:
    return flat(text_parser.text_string_to_metric_families(page))


def by_openmetrics_parser(page: str) -> list[Sample]:
    return flat(openmetrics_parser.text_string_to_metric_families(page))


def names_of(samples: Iterable[Sample]) -> set[str]:
    return {sample.name for sample in samples}


def one(line: str, name: str = "a") -> Sample:
    (sample,) = read_samples(f"{line}\n", {name})
    return sample


class TestCapturedPages:
    @pytest.mark.parametrize("name", PAGES)
    def test_all_samples_as_prometheus_client_reads_them(self, data: Path, name: str) -> None:
        page = (data / f"engine-pages/{name}.prom").read_text(encoding="utf-8")
        expected = by_text_parser(page)
        assert len(expected) > 100
        assert bag(read_samples(page, names_of(expected))) == bag(expected)

    @pytest.mark.parametrize("name", PAGES)
    def test_the_same_in_openmetrics(self, data: Path, name: str) -> None:
        families = list(
            text_parser.text_string_to_metric_families(
                (data / f"engine-pages/{name}.prom").read_text(encoding="utf-8")
            )
        )

        class Page(Collector):
            def collect(self) -> Iterable[Metric]:
                # OpenMetrics has these inside of the family that they tell the beginning of.
                return (family for family in families if not family.name.endswith("_created"))

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Page())
        page = openmetrics_exposition.generate_latest(registry).decode()
        expected = by_openmetrics_parser(page)
        assert len(expected) > 100
        assert bag(read_samples(page, names_of(expected))) == bag(expected)

    def test_chosen_samples_only(self, data: Path) -> None:
        page = (data / "engine-pages/vllm-0.32_lmcache-mp-0.5.6_engine.prom").read_text()
        names = {"vllm:prompt_tokens_by_source_total", "vllm:kv_cache_usage_perc", "no_such_metric"}
        engine = {"engine": "0", "model_name": "tiny"}
        assert list(read_samples(page, names)) == [
            Sample("vllm:kv_cache_usage_perc", engine, 0),
            Sample("vllm:prompt_tokens_by_source_total", engine | {"source": "local_compute"}, 652),
            Sample("vllm:prompt_tokens_by_source_total", engine | {"source": "local_cache_hit"}, 0),
            Sample(
                "vllm:prompt_tokens_by_source_total",
                engine | {"source": "external_kv_transfer"},
                8448,
            ),
        ]


class TestLabels:
    @pytest.mark.parametrize(
        ("text", "labels"),
        [
            ("", {}),
            ("{}", {}),
            ("{ }", {}),
            ('{b="c"}', {"b": "c"}),
            ('{b="c",}', {"b": "c"}),
            ('{b="c",d=""}', {"b": "c", "d": ""}),
            (' { b = "c" , d="e" , } ', {"b": "c", "d": "e"}),
            ('\t{\tb\t=\t"c"\t}', {"b": "c"}),
            (r'{b="\\"}', {"b": "\\"}),
            (r'{b="\""}', {"b": '"'}),
            (r'{b="\n"}', {"b": "\n"}),
            (r'{b="\\n"}', {"b": r"\n"}),
            (r'{b="\\\n",d="\\\\"}', {"b": "\\\n", "d": "\\\\"}),
            (r'{b="c:\temp"}', {"b": r"c:\temp"}),
            ('{b="{x=1, y}} 2 # {",c="}"}', {"b": "{x=1, y}} 2 # {", "c": "}"}),
            ('{b="käse 🧀\u2028\r\t\x85"}', {"b": "käse 🧀\u2028\r\t\x85"}),
            ('{le="+Inf",_x1="a"}', {"le": "+Inf", "_x1": "a"}),
            ('{"b.c"="d","e\\"f"="g"}', {"b.c": "d", 'e"f': "g"}),
        ],
    )
    def test_as_written(self, text: str, labels: dict[str, str]) -> None:
        assert one(f"a{text} 1.5") == Sample("a", labels, 1.5)

    @pytest.mark.parametrize(
        ("line", "name", "labels"),
        [
            ('{"my.metric"} 1', "my.metric", {}),
            ('{"my.metric",} 1', "my.metric", {}),
            ('{"my.metric",b="c"} 1', "my.metric", {"b": "c"}),
            (' { "my.metric" , "b.c" = "d" } 1', "my.metric", {"b.c": "d"}),
            (r'{"a\"\\\n{b}",b="c"} 1', 'a"\\\n{b}', {"b": "c"}),
            ('{"a"} 1', "a", {}),
        ],
    )
    def test_quoted_metric_name(self, line: str, name: str, labels: dict[str, str]) -> None:
        assert one(line, name) == Sample(name, labels, 1)

    def test_name_that_must_be_quoted_does_not_match_unquoted(self) -> None:
        assert list(read_samples("my.metric 1\nmy metric 2\n", {"my.metric", "my metric"})) == []


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0", 0),
            ("-0.25", -0.25),
            ("+3", 3),
            (".5", 0.5),
            ("5.", 5),
            ("1e3", 1000),
            ("2.282938368e+09", 2282938368),
            ("1E-2", 0.01),
            ("9007199254740993", 9007199254740992),
            ("1e999", math.inf),
            ("Inf", math.inf),
            ("+Inf", math.inf),
            ("-Inf", -math.inf),
            ("+infinity", math.inf),
        ],
    )
    def test_number(self, text: str, value: float) -> None:
        assert one(f"a {text}").value == value
        assert one(f'a{{b="c"}} {text} 1395066363000').value == value

    @pytest.mark.parametrize("text", ["NaN", "nan", "+NaN"])
    def test_not_a_number(self, text: str) -> None:
        assert math.isnan(one(f"a {text}").value)

    def test_is_a_float(self) -> None:
        assert type(one("a 1").value) is float

    @pytest.mark.parametrize(
        "rest",
        [
            " 7",
            "\t7\t",
            "   7   1395066363000   ",
            " 7 -3982045",
            " 7 1520879607.789",
            " 7 1.520879607e9",
            "{}7",
            " 7\r",
            ' 7 # {trace_id="KOO5S4vxi0o"} 0.67',
            ' 7 # {trace_id="x",} 0.67 1520879607.789',
            ' 7 1520879607.789 # {trace_id="} # { \\" "} 9.8',
            " 7 # {} NaN",
        ],
    )
    def test_timestamp_and_exemplar_are_read_over(self, rest: str) -> None:
        assert one(f"a{rest}") == Sample("a", {}, 7)


class TestLines:
    def test_histogram_and_counter(self) -> None:
        page = "\n".join([
            "# HELP a Seconds.\\na 99",
            "# TYPE a histogram",
            "# UNIT a seconds",
            'a_bucket{le="0.1"} 3 # {id="x"} 0.05',
            'a_bucket{le="+Inf"} 4',
            "a_sum 2.5",
            "a_count 4",
            "a_created 1520430000.123",
            "# TYPE b counter",
            "b_total 17",
            "b_created 1520430000.456",
            "# EOF",
            "",
        ])
        names = {"a_bucket", "a_sum", "a_count", "a_created", "b_total"}
        assert list(read_samples(page, names)) == [
            ("a_bucket", {"le": "0.1"}, 3),
            ("a_bucket", {"le": "+Inf"}, 4),
            ("a_sum", {}, 2.5),
            ("a_count", {}, 4),
            ("a_created", {}, 1520430000.123),
            ("b_total", {}, 17),
        ]

    def test_name_is_matched_whole(self) -> None:
        page = "a_total 1\nxa 2\na:b 3\na} 4\na 5\nb a 6\n"
        assert list(read_samples(page, {"a"})) == [("a", {}, 5)]
        assert list(read_samples(page, {"a", "a_total"})) == [("a_total", {}, 1), ("a", {}, 5)]

    def test_name_is_no_pattern(self) -> None:
        assert list(read_samples('ab 1\n{"ab"} 2\n{"a."} 3\n', {"a."})) == [("a.", {}, 3)]

    def test_comments_and_blank_lines(self) -> None:
        page = "\n\n \t\n#a 1\n# a 2\n  # a 3\n#\na 4\n\n# HELP\n# TYPE a\n\ta 5"
        assert list(read_samples(page, {"a"})) == [("a", {}, 4), ("a", {}, 5)]

    def test_crlf(self) -> None:
        page = '# TYPE a gauge\r\na{b="c"} 1\r\n\r\na 2\r\n'
        assert bag(read_samples(page, {"a"})) == bag(by_text_parser(page))

    def test_line_ends_at_a_line_feed_only(self) -> None:
        page = "x 1\ra 2\u2028a 3\x0ba 4\x85a 5\n"
        assert list(read_samples(page, {"a"})) == []

    @pytest.mark.parametrize("page", ["", "\n", "a", "a 1", "<html>\n{", "\x00"])
    def test_nothing_wanted(self, page: str) -> None:
        assert list(read_samples(page, set())) == []

    def test_same_series_twice(self) -> None:
        assert [s.value for s in read_samples("a 1\na 2\n", {"a"})] == [1, 2]


class TestMalformed:
    @pytest.mark.parametrize(
        "line",
        [
            "a",
            "a ",
            "a\t\r",
            "a one",
            "a 1 2 3",
            "a 1 x",
            "a 1 NaN",
            "a 1_000",
            "a 0x10",
            "a 1e",
            "a .",
            "a ١",  # noqa: RUF001
            "a 1,5",
            "a 1 # comment",
            "a 1 # {",
            'a 1 # {b="c"}',
            'a 1 # {b="c" 1',
            'a 1# {b="c"} 1',
            "a{",
            "a{ 1",
            "a {} ",
            "a{b} 1",
            "a{b=} 1",
            "a{b=c} 1",
            "a{b='c'} 1",
            'a{b="c} 1',
            'a{b="c\\"} 1',
            'a{b="c" 1',
            'a{b="c"d="e"} 1',
            'a{b="c",,d="e"} 1',
            'a{,b="c"} 1',
            "a{,} 1",
            'a{="c"} 1',
            'a{""="c"} 1',
            'a{1b="c"} 1',
            'a{b-c="d"} 1',
            'a{b="c",b="d"} 1',
            'a{"b"="c",b="d"} 1',
            'a{"b"} 1',
            'a{b="c"}} 1',
            '{"a" b="c"} 1',
            '{"a"',
            '{"a"} ',
            '{"a"}{b="c"} 1',
        ],
    )
    def test_wanted_line(self, line: str) -> None:
        with pytest.raises(ValueError, match="is not a sample") as e:
            list(read_samples(f"\n# EOF\n{line}\na 1\n", {"a"}))
        assert str(e.value) == f"line 3 of the metrics page is not a sample: {line!r}"
        assert list(read_samples(f"{line}\nb 1\n", {"b"})) == [("b", {}, 1)]

    def test_samples_before_it_have_been_given(self) -> None:
        samples = read_samples("a 1\na x\n", {"a"})
        assert next(samples) == ("a", {}, 1)
        with pytest.raises(ValueError, match="line 2"):
            next(samples)

    @pytest.mark.parametrize("rest", ["", " ", "{", '{b="c', '{b="c"}', " 1 # {"])
    def test_page_cut_off(self, rest: str) -> None:
        with pytest.raises(ValueError, match="line 2 "):
            list(read_samples(f"b 1\na{rest}", {"a"}))

    def test_message_has_only_the_beginning_of_the_line(self) -> None:
        with pytest.raises(ValueError, match="line 1 ") as e:
            list(read_samples("a " + 10**6 * "x", {"a"}))
        assert len(str(e.value)) < 200


names = st.sampled_from(["a", "a_total", "a_sum", "a:b", "b", "b1"]) | st.from_regex(
    r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True
)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
characters = st.characters(codec="utf-8")
label_values = st.text(st.sampled_from('\\"\n{}=,# n') | characters)
label_sets = st.dictionaries(label_names, label_values, max_size=4)
numbers = st.one_of(
    st.floats().map(repr),
    st.floats().map("{:.3E}".format),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["NaN", "Inf", "+Inf", "-Inf", "5.", ".5", "+1", "1e999"]),
)
counts = st.integers(0, 2**70).map(str) | st.floats(0, allow_nan=False).map(repr)
blanks = st.sampled_from(["", "", " ", "\t", "  \t"])


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def text_lines(draw: st.DrawFn) -> str:
    """A sample in Prometheus' text format, with blanks wherever they may be."""
    gap = draw(st.sampled_from([" ", "   ", "\t"]))
    labels = draw(label_sets)
    parts = [draw(blanks), draw(names)]
    if draw(st.booleans()) or labels:
        pairs = [
            f'{draw(blanks)}{name}{draw(blanks)}={draw(blanks)}"{escaped(value)}"{draw(blanks)}'
            for name, value in labels.items()
        ]
        comma = draw(st.sampled_from(["", "," + draw(blanks)])) if labels else draw(blanks)
        parts += [draw(blanks), "{", ",".join(pairs), comma, "}"]
    parts += [gap, draw(numbers)]
    if draw(st.booleans()):
        parts += [gap, str(draw(st.integers(-(2**40), 2**41)))]
    return "".join([*parts, draw(st.sampled_from(["", " ", "\r"]))])


other_lines = st.one_of(
    st.sampled_from(["", " ", "#", "# a 1", "#a 1", '# {"a"} 1', "# EOF", "# TYPE a gauge"]),
    st.text(characters).map(lambda text: f"# HELP a {escaped(text)}"),
)


@st.composite
def openmetrics_families(draw: st.DrawFn, name: str) -> list[str]:
    """The lines of one family in OpenMetrics."""
    pairs = [
        f'{label}="{escaped(value)}"'
        for label, value in draw(label_sets).items()
        if label not in ("le", name)
    ]
    labels = f"{{{','.join(pairs)}}}" if draw(st.booleans()) or pairs else ""
    time = draw(st.sampled_from(["", " 1520879607", " 1520879607.789", " 1.5208796e9"]))
    exemplar = ""
    if draw(st.booleans()):
        # Quoted braces, quotes and backslashes in exemplars mislead one version of
        # prometheus_client or another.
        trace = draw(st.text(characters.filter(lambda c: c not in '}"\\\n'), max_size=9))
        exemplar = f' # {{id="{trace}"}} {draw(numbers)}'
        exemplar += draw(st.sampled_from(["", " 1520879607.789"]))
    kind = draw(st.sampled_from(["unknown", "gauge", "counter", "histogram"]))
    head = [f"# TYPE {name} {kind}", f"# HELP {name} {escaped(draw(st.text(characters)))}"]
    match kind:
        case "counter":
            return [
                *head,
                f"{name}_total{labels} {draw(counts)}{time}{exemplar}",
                f"{name}_created{labels} 1520430000.123{time}",
            ]
        case "histogram":
            low, high = sorted(draw(st.tuples(*[st.integers(0, 2**70)] * 2)))
            return [
                *head,
                f"{name}_bucket{{{','.join([*pairs, 'le="0.5"'])}}} {low}{time}{exemplar}",
                f"{name}_bucket{{{','.join(['le="+Inf"', *pairs])}}} {high}{time}",
                f"{name}_sum{labels} {draw(counts)}{time}",
                f"{name}_count{labels} {high}{time}",
            ]
        case _:
            return [*head, f"{name}{labels} {draw(numbers)}{time}"]


@st.composite
def openmetrics_pages(draw: st.DrawFn) -> str:
    families = [draw(openmetrics_families(name)) for name in ("f", "g:h", "_i")]
    return "\n".join([line for family in families for line in family] + ["# EOF", ""])


class TestGeneratedPages:
    @given(st.lists(text_lines() | other_lines), st.data())
    def test_text_format(self, lines: list[str], data: st.DataObject) -> None:
        page = "\n".join(lines) + data.draw(st.sampled_from(["", "\n"]))
        samples = by_text_parser(page)
        assert bag(read_samples(page, names_of(samples))) == bag(samples)
        wanted = data.draw(st.sets(st.sampled_from(sorted({"a", "b", *names_of(samples)}))))
        expected = [sample for sample in samples if sample.name in wanted]
        assert bag(read_samples(page, wanted)) == bag(expected)

    @given(openmetrics_pages())
    def test_openmetrics(self, page: str) -> None:
        samples = by_openmetrics_parser(page)
        assert len(samples) >= 3
        assert bag(read_samples(page, names_of(samples))) == bag(samples)

    @given(label_values.filter(bool), st.dictionaries(label_values.filter(bool), label_values))
    def test_quoted_names(self, name: str, labels: dict[str, str]) -> None:
        pairs = [f'"{escaped(key)}"="{escaped(value)}"' for key, value in labels.items()]
        line = f"{{{','.join([f'"{escaped(name)}"', *pairs])}}} 1"
        assert one(line, name) == Sample(name, labels, 1)


fragments = st.sampled_from([
    *'ab{}",=\\# \n\t\r1.-+_e', "a{", 'b="', '",', '"} ', " # {", "NaN", "\n", "\na ", '{"a"',
])  # fmt: skip


class TestGarbage:
    @given(st.lists(fragments | characters, max_size=60).map("".join))
    def test_gives_samples_or_a_value_error(self, page: str) -> None:
        try:
            samples = list(read_samples(page, {"a", "b"}))
        except ValueError:
            return
        assert names_of(samples) <= {"a", "b"}
        assert len(samples) <= page.count("\n") + 1

    @settings(max_examples=1000)
    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), fragments), max_size=3))
    def test_accepts_nothing_that_prometheus_client_reads_otherwise(
        self, edits: list[tuple[int, int, str]]
    ) -> None:
        line = r'a{b="c",d="\\e",} 15.25 12'
        for start, length, replacement in edits:
            line = line[:start] + replacement + line[start + length :]
        # The reference knows no exemplars, and quoted names in newer versions only.
        assume("#" not in line and not re.search(r'[{,]\s*"', line))
        try:
            samples = list(read_samples(line, {"a"}))
        except ValueError:
            return
        if samples:
            lines = [part for part in line.split("\n") if re.match(r"[ \t]*a[ \t\r{]", part)]
            assert bag(samples) == bag(by_text_parser("\n".join(lines)))

    @pytest.mark.parametrize(
        ("piece", "before", "after"),
        [
            ("\\", 'a{b="', ""),
            ('b="c",', "a{", ""),
            ('b="c",', "a 1 # {", ""),
            (' b="c" ', "a{", ""),
            (" ", "a", "x"),
            (" ", "a{", "x"),
            ("9", "a ", "x"),
            ("9.", "a 1", "x"),
            ("1 ", "a ", ""),
            ("{", "a", ""),
            ('"', '{"a', ""),
            ('\\"', 'a{b="', "} 1"),
        ],
    )
    def test_huge_line(self, piece: str, before: str, after: str) -> None:
        """Were the time not linear in the line's length, this would not come to an end."""
        line = before + piece * (5_000_000 // len(piece)) + after
        with pytest.raises(ValueError, match="line 2 "):
            list(read_samples(f"b 1\n{line}\nb 1", {"a", '"' * 9}))

    @pytest.mark.parametrize("piece", ["\n", "a", " ", "\n ", "{", "#", 'x{b="c"} 1\n'])
    def test_huge_page_without_wanted_lines(self, piece: str) -> None:
        page = piece * (5_000_000 // len(piece)) + "\na 1\n"
        assert list(read_samples(page, {"a"})) == [("a", {}, 1)]

    def test_huge_well_formed_line(self) -> None:
        labels = {f"l{i}": "\n" for i in range(100_000)}
        text = ",".join(rf'{name}="\n"' for name in labels)
        assert one(f"a{{{text}}} 1.{'0' * 10**6}1") == Sample("a", labels, 1)
