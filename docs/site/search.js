/* How results of the search are ordered: pages that explain a word come before names of the reference and old changes. */
const KEYWORDS = {
  "docs/aggregates": ["aggregate", "accumulator", "retract", "merge", "group by", "over"],
  "docs/budgets": ["budget", "cost", "money", "tokens"],
  "docs/caching": ["cache", "cache ttl", "duplicates", "resume"],
  "docs/calling-from-spark": ["column", "dead letter", "replay", "register", "notebook", "connect"],
  "docs/cookbook": ["embedding", "enrichment", "fraud", "geocoding", "lookup", "recipe"],
  "docs/deployment": ["container", "docker", "helm", "kubernetes", "keda", "compose", "databricks", "emr"],
  "docs/errors": ["dead letter", "error", "on error", "null"],
  "docs/guards": ["circuit breaker", "guard", "limit", "rate"],
  "docs/models": ["completion", "embedding", "llm", "openai", "prompt"],
  "docs/observing-jobs": ["progress", "summary", "trace", "cancel", "stop"],
  "docs/operations": ["alert", "limit", "metric", "prometheus", "setting"],
  "docs/options": ["buffer capacity", "concurrency", "option", "retry", "timeout"],
  "docs/process-table-functions": ["process", "state", "timer"],
  "docs/process-table-functions-on-streams": ["checkpoint", "restart", "state", "watermark"],
  "docs/reliability": ["failure", "lost", "retry", "timeout"],
  "docs/security": ["certificate", "tls", "token"],
  "docs/sql": ["sql", "explain", "statement"],
  "docs/windows": ["cumulate", "hop", "session", "tumble", "window"],
  "docs/windows-on-streams": ["late", "watermark", "window"],
  "docs/writing-a-plugin": ["batch", "hedge", "open", "plugin", "vectorized"],
};
const words = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().replace(/[-_\s]+/g, " ").trim();

var Scorer = {
  objNameMatch: 3,
  objPartialMatch: 1,
  objPrio: { 0: 1, 1: 1, 2: 0 },
  objPrioDefault: 0,
  title: 20,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    const explains = (KEYWORDS[page] || []).some((word) => words === word || words === word + "s");
    if (explains) return score + (anchor ? 30 : 60);
    return page === "CHANGELOG" || page.startsWith("docs/reference/") ? score - 10 : score;
  },
};
