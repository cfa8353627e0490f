from pathlib import Path

from hora_rl.deploy import memory_docs
from hora_rl.deploy.configuration_docs import document

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_says_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), (
        "run: python -m hora_rl.deploy.configuration_docs > docs/reference/configuration.md"
    )


def test_the_table_of_memory_is_what_check_would_say() -> None:
    page = PAGE.with_name("memory.md").read_text(encoding="utf-8")
    assert page == memory_docs.document(), (
        "run: python -m hora_rl.deploy.memory_docs > docs/reference/memory.md"
    )
    assert page.count("does not fit") < page.count(" · ")


def test_every_key_is_explained() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `")]
    bare = [row for row in rows if row.endswith("|  |")]
    assert len(rows) > 80
    assert not bare
