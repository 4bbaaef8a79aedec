// Draws the charts of the overview with uPlot. The server sends at most 1,000 points.
"use strict";
(() => {
  const HEIGHT = 190, LEAST_MS = 2000;
  const boxes = [...document.querySelectorAll("[data-chart]")];
  let plots = [], columns = null, asked = 0, due = 0;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const bytes = (v) => v == null ? "–" : v >= 1e9 ? `${+(v / 1e9).toFixed(2)} GB` : v >= 1e6 ? `${+(v / 1e6).toFixed(2)} MB`
    : v >= 1e3 ? `${+(v / 1e3).toFixed(1)} kB` : `${Math.round(v)} B`;
  const percent = (v) => v == null ? "–" : `${+(100 * v).toFixed(1)} %`;
  const seconds = (v) => v == null ? "–" : v >= 60 ? `${+(v / 60).toFixed(1)} min` : v >= 1 ? `${+v.toFixed(1)} s` : `${+(1000 * v).toFixed(0)} ms`;

  const KINDS = {
    score: {format: percent, lines: [["score", "score", "good"]], top: 1},
    time: {format: seconds, lines: [["collecting", "collecting", "accent"], ["summing", "summing", "open"]]},
    bytes: {format: bytes, lines: [["down", "to clients", "accent"], ["up", "from clients", "good"]]},
  };

  function marks(found) {
    // Vertical lines at the rounds that forgot a client.
    return {hooks: {draw: (u) => {
      const {ctx, bbox} = u;
      ctx.save();
      ctx.strokeStyle = colour("bad"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([4, 3]);
      for (const mark of found) {
        const x = Math.round(u.valToPos(mark.round, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      }
      ctx.restore();
    }}};
  }

  function draw(box) {
    const kind = KINDS[box.dataset.chart], width = box.clientWidth;
    const axis = {stroke: colour("soft"), grid: {stroke: colour("line"), width: 1}, ticks: {stroke: colour("line"), width: 1}, font: "11px sans-serif"};
    const few = columns.rounds.length < 60;
    const options = {
      width, height: HEIGHT, plugins: [marks(columns.marks)], cursor: {y: false},
      scales: {x: {time: false}, y: {range: (u, low, high) => [0, kind.top || (high > 0 ? high * 1.08 : 1)]}},
      axes: [axis, {...axis, size: 62, values: (u, ticks) => ticks.map(kind.format)}],
      series: [{label: "round"}, ...kind.lines.map(([, label, name], i) => ({
        label, stroke: colour(name), width: 1.5, dash: i ? [5, 4] : undefined, spanGaps: true, points: {show: few, size: 4}, value: (u, v) => kind.format(v),
      }))],
    };
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", described(kind));
    return new uPlot(options, [columns.rounds, ...kind.lines.map(([key]) => columns[key])], box);
  }

  function described(kind) {
    const parts = kind.lines.map(([key, label]) => {
      const values = columns[key].filter((v) => v != null);
      return values.length ? `${label} from ${kind.format(values[0])} to ${kind.format(values[values.length - 1])}` : `${label} not measured`;
    });
    const [first, last] = [columns.rounds[0], columns.rounds[columns.rounds.length - 1]];
    return `Rounds ${first} to ${last}: ${parts.join("; ")}. Unlearning in ${columns.marks.length} rounds.`;
  }

  function redraw() {
    plots.forEach((plot) => plot.destroy());
    plots = [];
    if (!columns) return;
    boxes.forEach((box) => box.replaceChildren());
    if (!columns.rounds.length) {
      for (const box of boxes) {
        const text = document.createElement("p");
        text.className = "soft"; text.textContent = "No round is committed yet.";
        box.append(text);
      }
      return;
    }
    plots = boxes.map(draw);
  }

  async function load() {
    due = 0; asked = performance.now();
    try {
      const reply = await fetch("/charts.json", {cache: "no-store"});
      if (reply.ok) update(await reply.json());
    } catch { /* The next event asks again. */ }
  }

  function update(found) {
    const same = columns && plots.length && JSON.stringify(found.marks) === JSON.stringify(columns.marks);
    columns = found;
    if (!same || !found.rounds.length) { redraw(); return; }
    plots.forEach((plot, i) => {
      const kind = KINDS[boxes[i].dataset.chart];
      plot.setData([columns.rounds, ...kind.lines.map(([key]) => columns[key])]);
      boxes[i].setAttribute("aria-label", described(kind));
    });
  }

  document.addEventListener("puf:event", (event) => {
    if (!event.detail.startsWith("round.committed") && !event.detail.startsWith("ticket.")) return;
    if (!due) due = setTimeout(load, Math.max(300, asked + LEAST_MS - performance.now()));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    plots.forEach((plot, i) => plot.setSize({width: boxes[i].clientWidth, height: HEIGHT}));
  });
  load();
})();
