"""HTML elements: texts are escaped, and an element can be rendered several times."""

from __future__ import annotations

from tracekit.text.elements import LINE_END, render, tag


def test_texts_and_attributes_are_escaped() -> None:
    element = tag.a("<b> & \u202e", 5, None, tag.br(), href='"x"', class_="a b", aria_label="'", hidden=True, id=None)
    shown = str(element)
    assert shown.startswith('<a href="&quot;x&quot;" class="a b" aria-label="&#x27;" hidden>&lt;b&gt; &amp; ')
    assert shown.endswith("5<br></a>")
    assert "\u202e" not in shown
    assert render(["a", LINE_END, tag.script("x < y")]) == "a\n<script>x < y</script>"


def test_an_element_is_the_same_each_time_it_is_rendered() -> None:
    element = tag.ul((tag.li(str(n)) for n in range(2)), map(str, (3, 4)))
    assert [str(element) for _ in range(2)] == ["<ul><li>0</li><li>1</li>34</ul>"] * 2
