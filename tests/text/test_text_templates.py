"""Chat templates in the sandbox: cases CT-03 and SE-01, and the real-style templates of tests/text/data."""

from __future__ import annotations

import json
import resource
import threading
from datetime import datetime
from pathlib import Path

import pytest

from ridgeline.errors import TemplateError
from ridgeline.text.limits import Limits
from ridgeline.text.templates import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}]
DATA = Path(__file__).parent / "data"


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source).render({"messages": MESSAGES, **variables})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{% if loop.index0==1 %}{% break %}{% endif %}{{m.content}}{% endfor %}", "hi"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{m.content}}{% endfor %}", "ho"),
        ("{{ {'a':'<b> 北京 & \\'x\\''} | tojson }}", '{"a": "<b> 北京 & \'x\'"}'),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2, sort_keys=true) }}", json.dumps({"a": [1, 2], "b": 1}, indent=2)),
        ("{{ {'é': 1} | tojson(ensure_ascii=true, separators=(',', ':')) }}", '{"\\u00e9":1}'),
        ("{% generation %}x{{ 1 }}{% endgeneration %}y", "x1y"),
        ("{%- if true %}\n  a\n{% endif %}\nb\n", "  a\nb"),
        ("  {% if true %}\n a\n  {% endif %}\n", " a\n"),
        ("{{ '<b>' }}", "<b>"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') ~ f(1) }}", "[a][1]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{{ messages[::-1][0].content }}{{ messages[1:]|length }}{{ 'abc'[:-1] }}", "ho1ab"),
        ("{{ dict(a=1)|tojson }}{{ dict.fromkeys(['x'], 2)|tojson }}", '{"a": 1}{"x": 2}'),
        ("{{ messages|map(attribute='content')|join('-') }}{{ '-'.join(['a', 'b']) }}", "hi-hoa-b"),
        ("{{ '%s=%d'|format('a', 3) }} {{ '%s' % 'b' }} {{ '{} {x}'.format(1, x=2) }} 1234567", "a=3 b 1 2 1234567"),
        ("{{ missing }}|{{ missing is defined }}|{{ missing|default('d') }}", "|False|d"),
        ("{{ (1, 2)|string }}{{ [1, 'a'] }}{{ none }}{{ 3 ** 4 }}{{ 'ab' * 2 }}{{ 7 // 2 }}", "(1, 2)[1, 'a']None81abab3"),
        (
            "{{ '  x '.strip() }}{{ 'a,b'.split(',')[1] }}{{ 'x'|upper }}{{ 'abc'.replace('b', 'BB') }}{{ 'é'.encode() }}",
            "xbXaBBcb'\\xc3\\xa9'",
        ),
        ("{% for x in [3, 1, 2]|sort %}{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %}{{ range(3)|list }}", "1,2,3[0, 1, 2]"),
        ("{% filter upper %}ab{% endfilter %}{% set b %}x{{ 1 }}{% endset %}{{ b }}{{ 'a\nb'|indent(2) }}", "ABx1a\n  b"),
        ("{{ [1.5, 2]|sum }}{{ 2.567|round(1) }}{{ [1,2,3]|batch(2)|list }}{{ 'x'|center(5) }}", "3.52.6[[1, 2], [3]]  x  "),
    ],
)
def test_ct03_features(source: str, text: str) -> None:
    assert render(source) == text


def test_ct03_strftime_now() -> None:
    assert render("{{ strftime_now('%Y-%m') }}") == datetime.now().strftime("%Y-%m")


def test_ct03_raise_exception_gives_its_message() -> None:
    with pytest.raises(TemplateError, match="no system role") as caught:
        render("{{ raise_exception('no system\nrole') }}")
    assert "\n" not in str(caught.value) and caught.value.value == "no system role"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].clear() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__['os'].system('true') }}",
    "{{ namespace(**{'__class__': 1}) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ messages|map(attribute='__class__')|list|first is undefined and x.y }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_se01_escapes_become_one_plain_line(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert MESSAGES == [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}]


@pytest.mark.parametrize(
    "source", ["{{ ''|attr('__class__') }}", "{{ [].__class__ }}", "{{ raise_exception.__globals__ }}", "{{ '{0.__class__}'.format('a') }}"]
)
def test_se01_unsafe_attributes_are_undefined(source: str) -> None:
    assert render(source) == ""


BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'a'*10**10 }}",
    "{{ 10**10*'a' }}",
    "{{ [0]*10**9 }}",
    "{{ b'a' if false else 'é'.encode()*10**10 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{{ range(100000)|join('x'*900000) }}",
    "{{ ('x'*900000).join(range(100000)|map('string')) }}",
    "{{ 'x'|center(10**9) }}{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**10) }}",
    "{{ 'x'.encode().rjust(10**9) }}",
    "{{ ('\t'*10000).expandtabs(10**6) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 10**9) }}",
    "{{ '{a:>{w}}'.format(a=1, w=10**9) }}",
    "{{ '{a:>{w}}'.format_map({'a': 1, 'w': 10**9}) }}",
    "{% set f = 'x'.ljust %}{{ f(10**10) }}",
    "{% set ns=namespace(s='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns=namespace(s='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns=namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns=namespace(s=(1,)) %}{% for i in range(100) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ ns.s }}",
    "{% set ns=namespace(s={}) %}{% for i in range(100) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s|tojson }}",
    "{% set ns=namespace(s={}) %}{% for i in range(100) %}{% set ns.s = dict(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s|tojson }}",
    "{% set a=namespace(s='x'*1000) %}{% set b=namespace(s=[a]*1000) %}{% set c=namespace(s=[b]*1000) %}{{ c }}",
    "{% set a=namespace() %}{% set b=namespace(s=[a]*1000) %}{% set c=namespace(s=[b]*1000) %}{% set a.s='x'*900000 %}{{ c }}",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 10**10000 }}",
    "{{ 10**1000**1000 }}",
    "{{ 2**(2**62) }}",
    "{% set ns=namespace(s=10) %}{% for i in range(100) %}{% set ns.s = ns.s*ns.s %}{% endfor %}",
    "{{ (5).to_bytes(10**10,'big') }}",
    "{{ 1.5|round(10**9,'ceil') }}",
    "{{ ('a'*900000)|replace('a','b'*900000) }}",
    "{{ ('a'*900000).replace('a','b'*900000) }}",
    "{{ ('a'*900000).translate({97: 'b'*900000}) }}",
    "{{ [1]|batch(10**9,0)|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ 'a\nb'|indent(10**9) }}",
    "{{ ('\n'*900000)|indent('x'*900000) }}",
    "{{ {'a':1}|tojson(indent=10**9) }}",
    "{% set s='x'*900000 %}{% set ns=namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = ns.l+[s[i:]] %}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}{{ 'y'*1000 }}{% endfor %}{% endset %}",
    "{% for i in range(100000) %}{{ 'y'*1000 }}{% endfor %}",
    "{% macro m() %}{% for i in range(100000) %}{{ 'y'*1000 }}{% endfor %}{% endmacro %}{{ m()|length }}",
    "{% for i in range(100000) %}{{ range(100000)|list|length }}{% endfor %}",
    "{% for i in range(100000) %}{{ range(100000)|sum }}{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 150 + "]" * 150 + " | tojson(indent=900000) }}",
    "{% if true %}" * 3000,
    "{{ x }}" * 100_000,
]


@pytest.mark.parametrize("source", BOMBS, ids=[str(place) for place in range(len(BOMBS))])
def test_se01_cost_bombs_end_early(source: str) -> None:
    """Bounded in time by the step limit and the deadline, in memory by the limits on sizes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source, Limits(seconds=1.0)).render({"messages": MESSAGES})
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_deadline_stops_what_counts_cheaply() -> None:
    limits = Limits(steps=10**12, seconds=0.05)
    with pytest.raises(TemplateError, match="seconds"):
        ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", limits).render({})


def test_limits_grow_with_the_conversation() -> None:
    """A long honest conversation is no bomb."""
    messages = [{"role": "user", "content": "x" * 20_000} for _ in range(100)]
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | trim) + '<|im_end|>' }}{% endfor %}"
    assert len(ChatTemplate(source).render({"messages": messages})) > 2_000_000
    many = [{"role": "user", "content": "x"}] * 30_000
    assert len(ChatTemplate(source).render({"messages": many})) > 500_000


def test_syntax_errors_and_other_errors_are_template_errors() -> None:
    for source in ("{% if %}", "{{ 1/0 }}", "{{ undefined_function() }}", "{{ 'a' + 1 }}", "{{ messages.x.y }}", "{% frob %}"):
        with pytest.raises(TemplateError, match="chat template failed"):
            render(source)


def test_threads_do_not_share_counts() -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% if true %}x{% endif %}{% endfor %}", Limits(steps=30_000))
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(template.render({})))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [20000] * 4


def test_no_other_environment_exists() -> None:
    """SE-01: a fix in one place leaves no second, unsandboxed render site."""
    root = Path(__file__).parents[2] / "src" / "ridgeline"
    users = [path.name for path in sorted(root.rglob("*.py")) if "jinja2" in path.read_text(encoding="utf-8").replace("`jinja2`", "")]
    assert set(users) <= {"sandbox.py", "templates.py"}
    for name in users:
        text = (root / "text" / name).read_text(encoding="utf-8")
        assert "jinja2.Template(" not in text and "jinja2.Environment(" not in text


@pytest.mark.parametrize("path", sorted(DATA.glob("*.jinja")), ids=lambda path: path.stem)
def test_sample_templates_render(path: Path) -> None:
    variables = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "add_generation_prompt": True}
    messages = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three?"}]
    text = ChatTemplate(path.read_text(encoding="utf-8")).render({**variables, "messages": messages})
    assert text.index("One?") < text.index("Two.") < text.index("Three?")
