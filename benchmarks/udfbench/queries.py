"""The queries of UDFBench in our own words.

`@` is the prefix of functions: nothing for ours, `own_` for PySpark's. `{name}` is the path of a file. The queries that
write, an update (20), an insert (21) and a file (6), only compute their rows.
"""

__all__ = ["LOCAL", "QUERIES"]

_JSON = "@records_of_json(TABLE (SELECT line FROM @read_file('{crossref_json}')))"
_XML = "@records_of_xml(TABLE (SELECT line FROM @read_file('{crossref_xml}')))"
_TERMS = "@frequent_terms(@stem(@filter_stop_words(@keywords(abstract))))"
_NAMES = "@sort_names(@sort_values(@remove_short_terms(@lowerize(authorlist))))"
_AMOUNTS = """SELECT a.id, a.type, sum(@to_euro(p.fundedamount, p.currency)) AS amount
    FROM artifacts a JOIN projects_artifacts pa ON a.id = pa.artifactid JOIN projects p ON pa.projectid = p.id
    GROUP BY a.id, a.type"""
_SCORES = f"""SELECT a.artifactid AS one, b.artifactid AS other, @jaccard(a.terms, b.terms) AS score
    FROM (SELECT artifactid, {_TERMS} AS terms FROM artifact_abstracts LIMIT 100) a
    CROSS JOIN (SELECT artifactid, {_TERMS} AS terms FROM artifact_abstracts LIMIT 100) b
    WHERE a.artifactid < b.artifactid"""
_TYPES = (
    "SELECT pa.projectid AS key, a.type AS kind FROM artifacts a JOIN projects_artifacts pa ON a.id = pa.artifactid"
)

QUERIES = {
    "q1": "SELECT id, @extract_year(date) AS y, @extract_month(date) AS m, @extract_day(date) AS d FROM artifacts",
    "q2": "SELECT id, day, month, year FROM @date_parts(TABLE (SELECT id, date FROM artifacts))",
    "q3": "SELECT id, @extract_year(@clean_date(date)) AS y, @extract_day(@clean_date(date)) AS d FROM artifacts",
    "q4": "SELECT @mean_of(double(authors)) AS mean, @middle(double(authors)) AS middle FROM artifacts",
    "q5": "SELECT @summary(double(authors)) AS summary FROM artifacts",
    "q6": f"SELECT doi, funding FROM {_JSON} UNION ALL SELECT doi, funding FROM {_XML}",
    "q7": """SELECT @mean_of(double(citations)) AS citations, @mean_of(double(authors)) AS authors FROM (
        SELECT @json_count(get_json_object(line, '$.citations')) AS citations,
            @json_count(get_json_object(line, '$.authors')) AS authors
        FROM @read_file('{pubmed_json}')) AS counted""",
    "q8": """SELECT @mean_of(double(citations)) AS citations, @mean_of(double(authors)) AS authors FROM (
        SELECT @json_count(target) AS citations, @json_count(authorlist) AS authors
        FROM artifact_citations c JOIN artifact_authorlists l ON c.artifactid = l.artifactid) AS counted""",
    "q9": f"""SELECT count(pair) AS pairs FROM @pairs_of(TABLE (
        SELECT artifactid, {_NAMES} FROM artifact_authorlists WHERE @json_count(authorlist) <= 50))""",
    "q10": f"SELECT inline(near) FROM (SELECT type, @clusters(id, amount) AS near FROM ({_AMOUNTS}) AS t "
           "GROUP BY type) AS u",
    "q11": f"SELECT inline(near) FROM (SELECT @clusters(id, amount) AS near FROM ({_AMOUNTS}) AS t "
           "WHERE amount > 2000) AS u",
    "q12": """SELECT artifactid, @add_noise(views) AS noisy FROM (
        SELECT artifactid, count(*) AS views FROM views_stats WHERE @clean_date(date) >= '2020-01-01'
        GROUP BY artifactid) AS counted ORDER BY noisy DESC LIMIT 10""",
    "q13": f"SELECT doi, @project_in(funding) AS project FROM {_JSON}",
    "q14": """SELECT @field_value(x.authorid) AS author, @field_value(x.affiliation) AS affiliation
        FROM artifact_authors x JOIN artifacts a ON x.artifactid = a.id
            JOIN projects_artifacts pa ON pa.artifactid = a.id JOIN projects p ON p.id = pa.projectid
        WHERE x.rank = 1 AND p.funder = 'European Commission' AND (x.authorid, @clean_date(a.date)) IN (
            SELECT authorid, last FROM (SELECT authorid, @latest(cleaned) AS last FROM (
                SELECT y.authorid, @clean_date(b.date) AS cleaned FROM artifact_authors y JOIN artifacts b
                ON y.artifactid = b.id WHERE y.rank = 1) AS dated GROUP BY authorid) AS latest_of)""",
    "q15": f"""SELECT a.id, found.project FROM (SELECT doi, @project_in(funding) AS project FROM {_XML}) AS found
        JOIN artifacts a ON found.doi = a.id
        LEFT ANTI JOIN (SELECT pa.artifactid, @code_of(p.fundingstring) AS code FROM projects_artifacts pa
            JOIN projects p ON p.id = pa.projectid) AS known
        ON known.artifactid = a.id AND known.code = found.project""",
    "q16": f"""SELECT funder, class, code, sum(CASE WHEN cleaned BETWEEN startdate AND enddate THEN 1 END) AS during
        FROM (
        SELECT @funder_of(p.fundingstring) AS funder, @class_of(p.fundingstring) AS class,
            @code_of(p.fundingstring) AS code, @clean_date(a.date) AS cleaned, p.startdate, p.enddate
        FROM @pairs_of(TABLE (SELECT artifactid, {_NAMES} FROM artifact_authorlists
            WHERE @json_count(authorlist) < 7)) AS t
        JOIN artifacts a ON a.id = t.id JOIN projects_artifacts pa ON pa.artifactid = a.id
        JOIN projects p ON p.id = pa.projectid) AS joined GROUP BY funder, class, code""",
    "q17": """WITH terms AS (SELECT id, word, count(*) AS times FROM @words_of(TABLE (
            SELECT artifactid, @stem(@filter_stop_words(@keywords(@lowerize(abstract)))) FROM artifact_abstracts))
            GROUP BY id, word),
        spread AS (SELECT word, count(*) AS documents FROM terms GROUP BY word)
        SELECT t.id, t.word, t.times * log10((SELECT count(DISTINCT artifactid) FROM artifact_abstracts)
            / (1.0 + s.documents)) AS weight FROM terms t JOIN spread s ON t.word = s.word""",
    "q18": f"SELECT inline(best) FROM (SELECT @top_five(one, other, score) AS best FROM ({_SCORES}) AS t) AS u",
    "q19": f"SELECT key, counts.* FROM (SELECT key, @pivoted(kind) AS counts FROM ({_TYPES}) AS t GROUP BY key) AS u",
    "q20": "SELECT id, @clean_date(date) AS date, authors, type FROM artifacts",
    "q21": f"SELECT @project_in(funding) AS projectid, doi AS artifactid, 'crossref' AS provenance FROM {_JSON}",
}  # fmt: skip

LOCAL = {
    "q10": f"SELECT id, cluster FROM @clusters(TABLE (SELECT id, amount, type FROM ({_AMOUNTS}) AS t) "
           "PARTITION BY type)",
    "q11": f"SELECT id, cluster FROM @clusters(TABLE (SELECT id, amount FROM ({_AMOUNTS}) AS t WHERE amount > 2000) "
           "WITH SINGLE PARTITION)",
    "q18": f"SELECT one, other, score FROM @top_five(TABLE ({_SCORES}) WITH SINGLE PARTITION)",
    "q19": f"SELECT key, publications, datasets, software FROM @pivoted(TABLE ({_TYPES}) PARTITION BY key)",
}  # fmt: skip
"""The queries that PySpark needs in another form: its aggregates return neither arrays nor structs."""
