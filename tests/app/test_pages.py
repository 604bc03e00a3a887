"""Every page of the app: it draws, says its finding and its tier, and has no exception; main controls do something."""

from __future__ import annotations

import pytest
from kvsim_app.quality import of_kind
from streamlit.testing.v1 import AppTest

PAGES = ("answer", "load_curve", "pareto", "compare", "anatomy", "memory_map", "timeline", "operations", "cost",
         "calculator", "how_it_works", "trace_explorer")  # fmt: skip


def go(app: AppTest, page: str) -> AppTest:
    app.run()
    return app.switch_page(f"views/{page}.py").run()


def texts(app: AppTest) -> str:
    return "\n".join(str(m.value) for m in (*app.markdown, *app.caption, *app.subheader))


@pytest.mark.parametrize("page", PAGES)
def test_page_draws_with_finding_and_tier(app: AppTest, page: str) -> None:
    go(app, page)
    assert not app.exception and not app.error
    said = texts(app)
    assert "#### " in said  # the finding
    assert any(word in said for word in ("imported", "datasheet", "measured", "exact counts", "As read"))


def test_first_visit_offers_questions_and_simulates_nothing(app: AppTest) -> None:
    app.query_params.clear()
    app.run()
    assert app.title[0].value.endswith("GPU?")
    assert [b.label for b in app.button].count("Compare") == 4


@pytest.mark.parametrize("chapter", range(8))
def test_every_chapter_teaches(app: AppTest, chapter: int) -> None:
    go(app, "how_it_works")
    group = app.button_group(key="chapter") if hasattr(app, "button_group") else app.get("button_group")[0]
    group.set_value([group.options[chapter].content if hasattr(group.options[chapter], "content")
                     else group.options[chapter]]).run()
    assert not app.exception and not app.error
    assert "#### " in texts(app)


def test_chapter_one_counts_what_is_computed(app: AppTest) -> None:
    go(app, "how_it_works")
    app.slider(key="why-now").set_value(4).run()
    assert "computed 10 tokens, with one 4" in texts(app)


def test_run_button_changes_the_address(app: AppTest) -> None:
    go(app, "calculator")
    device = next(box for box in app.selectbox if box.label == "Device" and str(box.key).startswith("device-"))
    device.set_value("l40s")
    next(b for b in app.button if b.label == "Run").click().run()
    assert not app.exception and not app.error
    assert app.query_params["device"] in ("l40s", ["l40s"])


def test_a_wrong_link_says_what_is_wrong(app: AppTest) -> None:
    app.query_params["policies"] = "pagd"
    app.run()
    assert not app.exception
    assert "did you mean" in app.error[0].value and "paged" in app.error[0].value


def test_a_link_to_a_file_of_the_machine_is_refused(app: AppTest) -> None:
    app.query_params["trace"] = "/etc/passwd"
    go(app, "compare")
    assert not app.exception
    assert "can't be opened here" in app.error[0].value


def test_a_recorded_run_is_compared(app: AppTest) -> None:
    app.query_params["runs"] = "recorded"
    go(app, "compare")
    assert not app.exception and not app.error
    assert "recorded" in app.dataframe[0].value.columns


def test_calculator_says_what_does_not_fit(app: AppTest) -> None:
    go(app, "calculator")
    app.selectbox(key="calc-model").set_value("llama-3.1-405b").run()
    assert not app.exception
    assert "does not fit" in texts(app)


def test_timeline_shows_single_prefill_chunks_of_own_and_recorded_simulations(app: AppTest) -> None:
    app.query_params["runs"] = "recorded"
    go(app, "timeline")
    for name in ("paged", "recorded"):
        app.button_group(key="timeline-run").set_value([name]).run()
        assert not app.exception and not app.error
        assert "Each step of a prefill is a bar of its own" in texts(app)


def test_compare_says_what_a_lossy_policy_costs_in_answers(app: AppTest) -> None:
    app.query_params["policies"] = "paged,paged-int4"
    go(app, "compare")
    shown = app.dataframe[0].value.set_index("metric")
    assert shown.loc["perplexity*", "paged"] == "unchanged"
    assert tuple(shown["paged-int4"][["perplexity*", "95 % interval*"]]) == of_kind("int4")[0].said
    assert "No promise" in texts(app)


def test_calculator_says_what_fewer_bits_cost_in_answers(app: AppTest) -> None:
    go(app, "calculator")
    assert "changes answers" not in texts(app)
    app.selectbox(key="calc-kv").set_value("int4").run()
    assert f"A cache in int4 changes answers: perplexity **{of_kind('int4')[0].text}**" in texts(app)
