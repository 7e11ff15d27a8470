// Charts over the last ten minutes, and the same figures as text for who cannot see them.

import uPlot from "./uplot.js";
import { h, setText } from "./dom.js";

const HEIGHT = 170;
const dark = matchMedia("(prefers-color-scheme: dark)");
const color = (name) => {
  const probe = h("span", { style: { color: `var(${name})` } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

const clock = (time) => new Date(1000 * time).toLocaleTimeString("en", { hour12: false });

export class Chart {
  // series: {label, figure(stats), color}; show: how a value is written; least, largest: of the axis' end.
  constructor(title, series, show, { least = 0, largest = null } = {}) {
    this.title = title;
    this.series = series;
    this.show = show;
    this.least = least;
    this.largest = largest;
    this.plot = null;
    this.space = h("div", { "aria-hidden": "true" });
    this.values = series.map(() => h("span"));
    const items = series.map((one, index) =>
      h("li", {}, h("i", { style: { "border-color": `var(${one.color})` } }), `${one.label} `, this.values[index]));
    this.text = h("ul", { class: "legend" }, items);
    this.element = h("section", { class: "card chart", "aria-label": title }, h("h2", {}, title), this.space, this.text);
    this.observer = new ResizeObserver(() => this.plot?.setSize({ width: this.space.clientWidth, height: HEIGHT }));
    this.observer.observe(this.space);
    this.redraw = () => { this.plot?.destroy(); this.plot = null; this.update(this.last ?? []); };
    dark.addEventListener("change", this.redraw);
  }

  update(samples) {
    this.last = samples;
    const data = [samples.map((one) => one.time), ...this.series.map((one) => samples.map(({ chosen }) => one.figure(chosen)))];
    this.values.forEach((value, index) => setText(value, samples.length ? this.show(data[index + 1].at(-1)) : "–"));
    if (this.plot) this.plot.setData(data);
    else if (this.space.clientWidth) this.plot = new uPlot(this.options(), data, this.space);
  }

  options() {
    const grid = { stroke: color("--line"), width: 1 };
    const axis = { stroke: color("--faint"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      width: this.space.clientWidth,
      height: HEIGHT,
      cursor: { y: false },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, this.largest ?? 1.1 * Math.max(high ?? 0, this.least)] } },
      axes: [{ ...axis, space: 90, values: (_, times) => times.map(clock) }, { ...axis, size: 64, values: (_, values) => values.map((one) => this.show(one)) }],
      series: [{}, ...this.series.map((one, index) => ({
        label: one.label, stroke: color(one.color), width: 2, dash: index ? [6, 4] : undefined, points: { show: false },
      }))],
    };
  }

  close() {
    this.observer.disconnect();
    dark.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }
}
