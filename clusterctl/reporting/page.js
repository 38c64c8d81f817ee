"use strict";
// Draws the document of `clusterctl report --json` with plotly.js. Colours: Okabe and Ito's, which
// colour-blind people can tell apart; Cividis for the heat maps.
const report = JSON.parse(document.getElementById("document").textContent);
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "hexagon"];

// plotly.js reads some HTML in labels; what hosts say is text.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const unique = (values) => [...new Set(values)];
const figure = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(3));

function draw(section, name, traces, layout) {
  const place = document.createElement("div");
  place.className = "chart";
  place.id = name;
  document.getElementById(section).append(place);
  const margin = { l: 10, r: 10, t: 50, b: 90 };
  Plotly.newPlot(
    place, traces,
    { margin, font: { size: 12 }, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, ...layout,
      xaxis: { automargin: true, ...layout.xaxis }, yaxis: { automargin: true, ...layout.yaxis } },
    { responsive: true, displayModeBar: false });
  window.addEventListener("beforeprint", () => Plotly.Plots.resize(place));
}

function nothing(section, text) {
  const line = document.createElement("p");
  line.className = "note";
  line.textContent = text;
  document.getElementById(section).append(line);
}

// A heat map of each lane: senders are rows, receivers columns.
const HOSTS = report.hosts.map((host) => host.name);
let maps = 0;
for (const lane of unique(report.pairs.map((pair) => pair.lane))) {
  for (const [key, unit, title] of [["mbit_s", "Mbit/s", "Throughput"], ["ms", "ms", "Round trip"]]) {
    const pairs = report.pairs.filter((pair) => pair.lane === lane && pair[key] !== null);
    if (!pairs.length) continue;
    const value = new Map(pairs.map((pair) => [JSON.stringify([pair.from, pair.to]), pair[key]]));
    const z = HOSTS.map((from) => HOSTS.map((to) => value.get(JSON.stringify([from, to])) ?? null));
    const few = HOSTS.length <= 12;
    // From zero, and round trips up to 1 ms at least: 0.06 beside 0.10 ms is no difference to look at.
    const zmax = Math.max(...value.values(), key === "ms" ? 1 : 0);
    draw("pairs", `pairs-${maps++}`, [{
      type: "heatmap", x: HOSTS.map(plain), y: HOSTS.map(plain), z, colorscale: "Cividis",
      reversescale: key === "ms", colorbar: { title: { text: unit } }, hoverongaps: false, zmin: 0, zmax,
      xgap: 1, ygap: 1, text: z.map((row) => row.map((cell) => (cell === null ? "" : figure(cell)))),
      texttemplate: few ? "%{text}" : "",
      hovertemplate: `%{y} → %{x}: %{z:.4g} ${unit}<extra></extra>`,
    }], { title: { text: `${title} of ${plain(lane)}, ${unit}` }, height: 220 + 28 * Math.min(HOSTS.length, 25),
      xaxis: { title: { text: "to" }, type: "category" },
      yaxis: { title: { text: "from" }, type: "category", autorange: "reversed" } });
  }
}
if (!maps) nothing("pairs", "Nothing was measured between hosts: fewer than two of them answer.");

// Two bars a rank; vLLM's log has some of the parts only.
if (report.memory.length) {
  const parts = unique(report.memory.flatMap((rank) => Object.keys(rank.predicted)));
  const rows = report.memory.flatMap((rank) => [["predicted", rank.predicted], ["reported", rank.reported]].map(
    ([word, sizes]) => ({ name: plain(`${rank.service} rank ${rank.rank} on ${rank.host}, ${word}`), sizes })))
    .filter((row) => Object.values(row.sizes).some((size) => size !== null));
  draw("memory", "memory-bars", parts.map((part, index) => ({
    type: "bar", orientation: "h", name: part, y: rows.map((row) => row.name),
    x: rows.map((row) => row.sizes[part] ?? null),
    textposition: "inside", text: rows.map((row) => (row.sizes[part] ? figure(row.sizes[part]) : "")),
    marker: { color: COLOURS[index], pattern: { shape: ["", "/", ".", "x", "\\"][index] } },
    hovertemplate: "%{y}: %{x:.3f} GiB<extra>" + plain(part) + "</extra>",
  })), { barmode: "stack", title: { text: "GiB" }, height: 170 + 30 * rows.length,
    uniformtext: { mode: "hide", minsize: 9 }, yaxis: { autorange: "reversed" } });
} else nothing("memory", "There is no forecast: nothing is served, or a host does not answer.");

// The last result of each load, a line for each service, version and kind of load.
const last = new Map(report.bench.map((one) => [
  JSON.stringify([one.service, one.versions.vllm, one.fingerprint, one.load]), one]));
const lines = new Map();
for (const one of last.values()) {
  const open = one.load.rate !== null;
  const name = `${one.service}, vLLM ${one.versions.vllm}, ${one.load.prompt} in ${one.load.output} out`;
  const unit = one.figures.unit ?? "tokens";
  const key = JSON.stringify([name, one.fingerprint, open, unit]);
  if (!lines.has(key)) lines.set(key, { name: plain(name), open, unit, points: [] });
  lines.get(key).points.push([open ? one.load.rate : one.load.concurrency, one.figures]);
}
const units = unique([...lines.values()].map((line) => line.unit));
for (const [open, unit] of [false, true].flatMap((open) => units.map((unit) => [open, unit]))) {
  const chosen = [...lines.values()].filter((line) => line.open === open && line.unit === unit);
  if (!chosen.length) continue;
  const axis = open ? "requests/s" : "requests at once";
  const curves = (of, name, dash) => chosen.map((line, index) => {
    const points = line.points.sort((a, b) => a[0] - b[0]);
    return { type: "scatter", mode: "lines+markers", name: line.name + name, x: points.map((point) => point[0]),
      y: points.map((point) => of(point[1])), line: { color: COLOURS[index % 8], dash },
      marker: { symbol: MARKS[index % 8], size: 9 } };
  });
  const layout = (title) => ({ title: { text: title }, height: 380,
    xaxis: { title: { text: axis }, type: "log",
      tickvals: unique(chosen.flatMap((line) => line.points.map((point) => point[0]))) }, yaxis: { rangemode: "tozero" } });
  const kind = open ? "rate" : "at-once";
  const per = chosen[0].points[0][1].per ?? "s";
  const speed = unit === "tokens" ? (f) => f.tokens_per_s : (f) => f.units_per_s * (per === "min" ? 60 : 1);
  const title = unit === "tokens" ? "Tokens/s generated" : plain(`${unit}/${per}`);
  draw("bench", `bench-${kind}-${unit.replace(/\W/g, "-")}`, curves(speed, "", "solid"), layout(title));
  const latencies = unit === "tokens"
    ? [["ttft_ms", "", "Time to the first token, ms"], ["tpot_ms", "", "Time per output token, ms"]]
    : [["e2el_ms", `-${unit.replace(/\W/g, "-")}`, plain(`Time of an answer, ms (${unit})`)]];
  for (const [key, more, about] of latencies)
    draw("bench", `bench-${kind}-${key}${more}`, [...curves((f) => f[key].p50, ", p50", "solid"),
      ...curves((f) => f[key].p95, ", p95", "dot")], layout(about));
}
if (!lines.size) nothing("bench", "Nothing was measured yet: clusterctl bench --sweep");

const KINDS = [["fault", "faults", "#D55E00", "x"], ["recovered", "ready or up again", "#009E73", "circle"],
  ["version", "versions changed", "#0072B2", "diamond"], ["phase", "starts and stops", "#999999", "line-ns-open"]];
if (report.timeline.length) {
  const row = (event) => plain(`${event.host} ${event.subject}`.slice(0, 40));
  const rows = unique(report.timeline.map(row)).sort();
  draw("timeline", "timeline-events", KINDS.map(([kind, name, color, symbol]) => {
    const events = report.timeline.filter((event) => event.kind === kind);
    return { type: "scatter", mode: "markers", name, x: events.map((event) => new Date(event.time * 1000).toISOString()),
      y: events.map(row), text: events.map((event) => plain(event.text)),
      marker: { color, symbol, size: 11, line: { width: 1, color } }, hovertemplate: "%{x}<br>%{text}<extra></extra>" };
  }), { title: { text: "By the hosts' clocks, UTC" }, height: 180 + 30 * rows.length, hovermode: "closest",
    yaxis: { type: "category", categoryarray: rows, automargin: true }, xaxis: { type: "date" } });
  const list = document.createElement("ul");
  for (const event of report.timeline.filter((one) => one.kind === "fault").slice(-50).reverse()) {
    const line = document.createElement("li");
    const time = new Date(event.time * 1000).toISOString().slice(0, 19).replace("T", " ");
    line.textContent = `${time} ${event.host} ${event.subject}: ${event.text}`;
    list.append(line);
  }
  document.getElementById("timeline").append(list);
} else nothing("timeline", "No host has a journal.");
document.body.dataset.drawn = "yes";
