"""A judged statement in every form: terminal, Markdown and HTML."""

from __future__ import annotations

from meshwright.cli.show import show
from meshwright.say.document import Document, Finding
from meshwright.say.html import fragment
from meshwright.say.markdown import markdown

FINDINGS = (Finding("impossible", "", "too <dear>"), Finding("impossible", "price", "24 times the list", ("$1 / 2 h", "24 x")))
DOCUMENT = Document(kind="claims", title="one claim", blocks=FINDINGS)


def test_on_a_terminal(capsys):
    show(DOCUMENT, as_json=False)
    assert capsys.readouterr().out == ("impossible: too <dear>\n\n  impossible  price: 24 times the list\n      $1 / 2 h\n      24 x\n\n")


def test_as_markdown():
    assert markdown(DOCUMENT).endswith(
        "**Impossible**: too \\<dear\\>\n\n**Impossible** price: 24 times the list\n\n- $1 / 2 h\n- 24 x\n\n"
    )


def test_as_html():
    page = fragment(DOCUMENT)
    assert "<p><b>impossible</b>: too &lt;dear&gt;</p>" in page
    assert "<p><b>impossible</b> price: 24 times the list</p><ul><li>$1 / 2 h</li><li>24 x</li></ul>" in page
