// Live statistics, the filter, and the form to try a call. What comes from the server is only ever set as text.
"use strict";

const EVERY = 2000;
const KEPT = 90;
const before = new Map();
const lines = new Map();

const shown = (number) => Math.round(number).toLocaleString("en");

const rounded = (number) => Number(number.toPrecision(6)).toLocaleString("en");
const part = ([spent, most]) => `${rounded(spent)} of ${rounded(most)}`;
const amounts = (found, show) => Object.entries(found).sort().map(([unit, n]) => `${show(n)} ${unit}`).join(", ");

// What rows wait for, by the statistic that grows meanwhile.
const WAITS = { crowded: "a thread or a turn", result_waits: "the client", rate_waits: "the rate of its guard" };

function waits(f, last) {
  const grows = Object.keys(WAITS).filter((name) => last && f[name] > last[name]);
  return [...(f.circuit_open ? ["its guard: the circuit is open"] : []), ...grows.map((name) => WAITS[name])].join(", ");
}

function showSpending(name, rows, second, show) {
  const table = document.getElementById(name);
  if (!table) return;
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows.map((found) => {
    const row = document.createElement("tr");
    for (const text of [found.caller || "anyone", found[second], amounts(found.spent, show)]) {
      row.insertCell().textContent = text;
    }
    return row;
  }));
}

function seconds(value) {
  if (value === null) return "";
  if (value < 1e-3) return `${Number((value * 1e6).toPrecision(3))} µs`;
  return value < 1 ? `${Number((value * 1e3).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`;
}

function sparkline(rates) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "120");
  svg.setAttribute("height", "20");
  const top = Math.max(...rates, 1e-9);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const place = (rate, i) => `${(120 * (KEPT - rates.length + i)) / (KEPT - 1)},${19 - (18 * rate) / top}`;
  line.setAttribute("points", rates.map(place).join(" "));
  svg.append(line);
  return svg;
}

function showFunction(found, now) {
  const row = document.querySelector(`tr[data-key="${CSS.escape(found.key)}"]`);
  if (!row) return;
  const cell = (name) => row.querySelector(`[data-statistic="${name}"]`);
  const f = found.statistics;
  const rows = f.ok + f.failed + f.skipped;
  const last = before.get(found.key);
  cell("rows").textContent = shown(rows);
  cell("failed").textContent = shown(f.failed);
  cell("failed").classList.toggle("bad", Boolean(last) && f.failed > last.failed);
  cell("in_flight").textContent = shown(f.in_flight);
  const saved = f.cache_hit + f.cache_shared, cached = saved + f.cache_miss + f.cache_uncached;
  cell("hits").textContent = cached ? `${(100 * saved / cached).toFixed(0)}%` : "";
  cell("spent").textContent = amounts(f.spent, rounded);
  const errors = Object.entries(f.errors).filter(([, count]) => count).sort();
  const text = (code) => (f.texts[code] === undefined ? "" : `: ${f.texts[code]}`);
  cell("errors").textContent = errors.map(([code, count]) => `${code} ${shown(count)}${text(code)}`).join("\n");
  cell("waits").textContent = waits(f, last);
  if (last) {
    // A server that was started again counts from 0.
    const rate = Math.max(rows - last.rows, 0) / ((now - last.now) / 1000);
    const calls = f.row_count - last.row_count;
    cell("rate").textContent = shown(rate);
    if (calls > 0) cell("mean").textContent = seconds((f.row_seconds - last.row_seconds) / calls);
    const rates = [...(lines.get(found.key) || []), rate].slice(-KEPT);
    lines.set(found.key, rates);
    cell("line").replaceChildren(sparkline(rates));
  }
  before.set(found.key, { ...f, rows, now });
}

async function poll() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("catalog.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const catalogue = await answer.json();
    const now = performance.now();
    catalogue.functions.forEach((found) => showFunction(found, now));
    showSpending("callers", catalogue.callers, "function", rounded);
    showSpending("budgets", catalogue.budgets, "budget", part);
    state.textContent = catalogue.server.ready ? "ready" : "not ready";
    state.className = catalogue.server.ready ? "good" : "bad";
  } catch {
    state.textContent = "does not answer";
    state.className = "bad";
  }
  setTimeout(poll, EVERY);
}

async function tryCall(event) {
  event.preventDefault();
  const form = event.target;
  const output = form.querySelector("output");
  const given = [...form.querySelectorAll("input")].map((input) => input.value);
  // Empty fields at the end were not given: they have defaults, or the server says that they are missing.
  while (given.length && given[given.length - 1] === "") given.pop();
  output.className = "";
  output.textContent = "...";
  try {
    const answer = await fetch("try", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ function: form.dataset.function, arguments: given }),
    });
    const said = await answer.json();
    output.className = said.error ? "bad" : "good";
    output.textContent = said.error
      ? `${said.error.code}: ${said.error.message}`
      : `${JSON.stringify(said.value)}  (${seconds(said.seconds)})`;
  } catch (problem) {
    output.className = "bad";
    output.textContent = String(problem);
  }
}

const filter = document.getElementById("filter");
if (filter) {
  filter.hidden = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const each of document.querySelectorAll("tr[data-key], section")) {
      const text = (document.getElementById(each.dataset.key) || each).textContent.toLowerCase();
      each.hidden = !text.includes(wanted);
    }
  });
}
for (const form of document.querySelectorAll("form.try")) {
  form.hidden = false;
  form.addEventListener("submit", tryCall);
}
poll();
