"""Generated tables of UDFBench's schema, with the columns that the queries read, and the files that they read."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark import TASKS

__all__ = ["make_files", "make_tables"]

_WORDS = "array('data', 'clouds', 'measuring', 'the', 'models', 'of', 'proteins', 'in', 'cities', 'observed', 'waves')"


def _picked(seed: int, count: int) -> str:
    return f"transform(sequence(1, {count}), i -> element_at({_WORDS}, int(1 + pmod(hash(id, i, {seed}), 11))))"


def _tables(n: int) -> dict[str, tuple[int, str]]:
    """Rows and columns of each table. `n` is the number of artifacts."""
    projects = max(n // 40, 5)
    doi = "concat('doi:', id)"
    return {
        "artifacts": (n, f"{doi} AS id, element_at(array("
            "date_format(date_add(date'2000-01-01', int(id % 8000)), 'yyyy-MM-dd'), "
            "date_format(date_add(date'2000-01-01', int(id % 8000)), 'dd.MM.yyyy'), "
            "date_format(date_add(date'2000-01-01', int(id % 8000)), 'yyyy/M/d')), int(1 + id % 3)) AS date, "
            "int(1 + pmod(hash(id), 9)) AS authors, "
            "element_at(array('publication', 'dataset', 'software'), int(1 + id % 3)) AS type"),
        "artifact_citations": (n // 2, f"{doi} AS artifactid, to_json(transform(sequence(1, int(1 + id % 12)), "
            "i -> concat('doi:', i))) AS target"),
        "artifact_authorlists": (n // 2, f"{doi} AS artifactid, to_json(transform(sequence(1, int(1 + id % 8)), "
            "i -> concat('J. Name', pmod(hash(id, i), 997), ' Van Dyke'))) AS authorlist"),
        "artifact_authors": (n * 2, "concat('doi:', id div 2) AS artifactid, "
            "to_json(array(named_struct('value', concat('orcid:', id % 5000)))) AS authorid, "
            "to_json(array(named_struct('value', concat('University of ', id % 97)))) AS affiliation, "
            "1 + id % 2 AS rank"),
        "artifact_abstracts": (n // 4, f"{doi} AS artifactid, array_join({_picked(1, 40)}, ' ') AS abstract"),
        "projects": (projects, "concat('p', id) AS id, element_at(array('European Commission', 'NSF'), "
            "int(1 + id % 2)) AS funder, concat('EC::H2020::', 100000 + id) AS fundingstring, "
            "'2001-01-01' AS startdate, '2019-12-31' AS enddate, "
            "double(1000 + pmod(hash(id), 100000)) AS fundedamount, "
            "element_at(array('EUR', 'USD', 'GBP', 'CHF'), int(1 + id % 4)) AS currency"),
        "projects_artifacts": (n, f"concat('p', pmod(hash(id), {projects})) AS projectid, {doi} AS artifactid"),
        "views_stats": (n * 5, f"concat('doi:', pmod(hash(id), {n // 10})) AS artifactid, "
            "date_format(date_add(date'2018-01-01', int(id % 1500)), 'dd.MM.yyyy') AS date"),
    }  # fmt: skip


def make_tables(spark: SparkSession, artifacts: int) -> None:
    """Creates a cached temporary view for each table."""
    for name, (rows, columns) in _tables(artifacts).items():
        frame = spark.range(0, rows, 1, TASKS).selectExpr(*_split(columns)).cache()
        frame.count()
        frame.createOrReplaceTempView(name)


def _split(columns: str) -> list[str]:
    """The columns between commas outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for letter in columns:
        quoted ^= letter == "'"
        depth += (letter in "([") - (letter in ")]") if not quoted else 0
        if letter == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def make_files(folder: Path, artifacts: int) -> dict[str, str]:
    """Writes the files that table functions read, and returns their paths by name."""
    found = [(f"doi:{n}", f"grant {100000 + n % 500} of the call") for n in range(artifacts)]
    counted = [{"citations": list(range(n % 9)), "authors": list(range(1 + n % 5))} for n in range(artifacts)]
    texts = {
        "crossref_json": [json.dumps({"publicationdoi": doi, "fundinginfo": text}) for doi, text in found],
        "crossref_xml": [
            f"<publication><publicationdoi>{doi}</publicationdoi><fundinginfo>{text}</fundinginfo></publication>"
            for doi, text in found
        ],
        "pubmed_json": [json.dumps({key: json.dumps(value) for key, value in each.items()}) for each in counted],
    }
    paths = {}
    for name, lines in texts.items():
        path = folder / name
        path.write_text("\n".join(lines), encoding="utf-8")
        paths[name] = str(path)
    return paths
