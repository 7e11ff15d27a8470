// The state of everything on one page.

import { Chart } from "./charts.js";
import { h, setText, Table } from "./dom.js";
import { age, count, duration, percent, rate } from "./format.js";
import { figures } from "./status.js";

export class Overview {
  constructor(status) {
    this.status = status;
    this.tiles = new Map();
    const milliseconds = (value) => duration(value);
    this.charts = [
      new Chart("Tokens per second", [
        { label: "generated", figure: figures.generated, color: "--accent" },
        { label: "prompt", figure: figures.prefilled, color: "--second" },
      ], rate, { least: 1 }),
      new Chart("Requests", [
        { label: "running", figure: figures.running, color: "--accent" },
        { label: "waiting", figure: figures.waiting, color: "--second" },
      ], count, { least: 1 }),
      new Chart("KV pool", [
        { label: "used", figure: figures.used, color: "--accent" },
        { label: "cached prefixes", figure: figures.cached, color: "--second" },
      ], percent, { largest: 1 }),
      new Chart("Time of a step", [
        { label: "median", figure: figures.stepP50, color: "--accent" },
        { label: "99th percentile", figure: figures.stepP99, color: "--second" },
      ], milliseconds, { least: 0.001 }),
    ];
    this.engines = new Table("Engines", [
      { title: "Name", text: (one) => one.engine },
      { title: "State", fill: (cell, one) => fillState(cell, one) },
      { title: "Models", text: (one) => this.modelsOf(one.engine) },
      { title: "Run", text: (one) => (one.instanceId ?? "").slice(0, 8) },
      { title: "Build", text: (one) => one.build ?? "–", long: true },
    ], "The gateway has no engines.");
    this.select = h("select", { onchange: () => { status.model = this.select.value; this.update(); } });
    this.facts = h("p", { class: "faint" });
    const grid = h("dl", { class: "tiles" });
    for (const name of ["Engines", "Models running", "Requests running", "Waiting", "Tokens/s", "Prompt tokens/s", "KV pool used", "Prefix hits"]) {
      const value = h("dd");
      this.tiles.set(name, value);
      grid.append(h("div", { class: "card tile" }, h("dt", {}, name), value));
    }
    this.element = h("div", { class: "stack" }, h("h1", {}, "Overview"),
      h("label", { style: { "max-width": "260px", "margin-bottom": "14px" } }, "Figures of", this.select),
      grid, h("div", { class: "charts" }, this.charts.map((one) => one.element)),
      h("div", { class: "card" }, this.engines.element), this.facts);
  }

  modelsOf(engine) {
    return this.status.models.filter((one) => one.engine === engine).map((one) => one.modelName).join(", ") || "–";
  }

  update() {
    const { status } = this;
    const engines = status.server?.engines ?? [];
    const stats = status.chosen();
    this.options();
    const set = (name, value) => setText(this.tiles.get(name), value);
    set("Engines", `${engines.filter((one) => one.reachable).length} of ${engines.length}`);
    set("Models running", count(status.running().length));
    set("Requests running", count(figures.running(stats)));
    set("Waiting", count(figures.waiting(stats)));
    set("Tokens/s", rate(figures.generated(stats)));
    set("Prompt tokens/s", rate(figures.prefilled(stats)));
    set("KV pool used", percent(figures.used(stats)));
    set("Prefix hits", percent(figures.hits(stats)));
    const samples = status.samples.map((one) => ({ time: one.time, chosen: status.chosen(one.stats) }));
    for (const chart of this.charts) chart.update(samples);
    this.engines.update(engines, (one) => one.engine);
    const server = status.server;
    setText(this.facts, server ? `${server.name}, ${server.build}, up for ${age(server.startTime)}${server.draining ? ", draining" : ""}` : "");
  }

  options() {
    const names = ["", ...new Set(this.status.models.map((one) => one.modelName))].sort();
    if (names.join("\n") === [...this.select.options].map((one) => one.value).join("\n")) return;
    if (!names.includes(this.status.model)) this.status.model = "";
    this.select.replaceChildren(...names.map((name) => h("option", { value: name }, name || "all models")));
    this.select.value = this.status.model;
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

function fillState(cell, engine) {
  const [text, kind] = !engine.reachable ? ["✕ unreachable", "bad"] : engine.draining ? ["◌ draining", "faint"] : ["● reachable", "good"];
  cell.className = kind;
  setText(cell, text);
}
