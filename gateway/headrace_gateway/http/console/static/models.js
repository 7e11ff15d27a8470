// Models on each engine: their state, and the verbs that change it.

import { call } from "./api.js";
import { cellButton, confirmed, h, openDialog, setText, Table } from "./dom.js";
import { age, bytes, count, percent, word } from "./format.js";

const RUNS = "MODEL_STATE_RUNNING";
const STOPPED = ["MODEL_STATE_INSTALLED", "MODEL_STATE_STOPPED"];

export class Models {
  constructor(status, report) {
    this.status = status;
    this.report = report;
    const stat = (one) => status.stats.find((each) => each.engine === one.engine && each.modelName === one.modelName) ?? {};
    this.table = new Table("Models", [
      { title: "Model", text: (one) => one.modelName, long: true },
      { title: "Engine", text: (one) => one.engine },
      { title: "State", fill: fillState },
      { title: "For", text: (one) => age(one.stateTime) },
      { title: "Running", text: (one) => count(stat(one).running), number: true },
      { title: "Waiting", text: (one) => count(stat(one).waiting), number: true },
      { title: "KV used", text: (one) => (stat(one).blocksTotal ? percent((stat(one).blocksUsed ?? 0) / stat(one).blocksTotal) : "–"), number: true },
      { title: "Actions", fill: (cell, one) => this.actions(cell, one) },
    ], "No model is installed.");
    this.element = h("div", { class: "stack" }, h("h1", {}, "Models"), h("div", { class: "card" }, this.table.element), this.form());
  }

  update() {
    this.table.update(this.status.models, (one) => `${one.engine}/${one.modelName}`);
  }

  actions(cell, model) {
    const verb = (method) => (one) => this.verb(method, one);
    cellButton(cell, "start", "Start", model, verb("StartModel"), STOPPED.includes(model.state) || model.state === "MODEL_STATE_FAILED");
    cellButton(cell, "stop", "Stop", model, async (one) => {
      if (await confirmed(`Stop ${one.modelName}?`, `Its requests on ${one.engine} end first, as long as its drain limit allows.`, "Stop")) this.verb("StopModel", one);
    }, model.state === RUNS);
    cellButton(cell, "release", "Release", model, async (one) => {
      if (await confirmed(`Release ${one.modelName}?`, `${one.engine} forgets it; it must be installed again to be used.`, "Release")) this.verb("ReleaseModel", one);
    }, model.state !== RUNS);
    cellButton(cell, "details", "Details", model, (one) => this.details(one));
  }

  async verb(method, model) {
    await this.report(() => call(`ModelService/${method}`, { modelName: model.modelName, engineIds: [model.engine], noWait: true }));
    this.status.ask();
  }

  async details(model) {
    await this.report(async () => {
      const { engines } = await call("ModelService/GetModel", { modelName: model.modelName, engineIds: [model.engine] });
      const dialog = openDialog(`${model.modelName} on ${model.engine}`,
        h("pre", { tabindex: "0" }, JSON.stringify(engines[0], null, 2)),
        h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
    });
  }

  form() {
    const field = (label, name, more = {}) => h("label", {}, label, h("input", { name, autocomplete: "off", ...more }));
    const form = h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); this.install(form); } },
      h("h2", {}, "Install a model"),
      h("div", { class: "fields" },
        field("Name", "modelName", { required: true }),
        field("Path on the engines, or a hub's name", "modelPath", { required: true }),
        field("Longest sequence (tokens)", "maxLength", { type: "number", min: "1", placeholder: "the model's" }),
        field("Largest batch", "maxBatch", { type: "number", min: "1", placeholder: "the engine's" }),
        h("label", { class: "wide" }, "More of its config, as JSON (fields of RuntimeConfig)",
          h("textarea", { name: "more", rows: "2", spellcheck: "false", placeholder: '{"weightQuant": "WEIGHT_QUANT_INT8"}' }))),
      h("div", { class: "actions" }, h("label", { class: "check" }, h("input", { type: "checkbox", name: "start", checked: true }), "Start it too"),
        h("button", { type: "submit" }, "Install")));
    return form;
  }

  async install(form) {
    const given = form.elements;
    const button = form.querySelector("button");
    button.disabled = true;
    const done = await this.report(async () => {
      const config = { ...readObject(given.more.value), modelName: given.modelName.value.trim(), modelPath: given.modelPath.value.trim() };
      for (const name of ["maxLength", "maxBatch"]) if (given[name].value) config[name] = Number(given[name].value);
      await call("ModelService/InstallModel", { config });
      if (given.start.checked) await call("ModelService/StartModel", { modelName: config.modelName, noWait: true });
    });
    button.disabled = false;
    if (done) form.reset();
    this.status.ask();
  }

  close() {}
}

function readObject(text) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The config cannot be read as JSON: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The config must be a JSON object.");
  return value;
}

function fillState(cell, model) {
  const failed = model.state === "MODEL_STATE_FAILED" || model.failure;
  const text = h("span", { class: failed ? "bad" : model.state === RUNS ? "good" : "faint" },
    `${model.state === RUNS ? "● " : failed ? "✕ " : ""}${word(model.state) || "unreachable"}`);
  const parts = [text];
  if (model.failure) parts.push(h("div", { class: "faint" }, model.failure.message));
  const progress = model.progress;
  if (progress) {
    const done = Number(progress.bytesDone ?? 0), total = Number(progress.bytesTotal ?? 0);
    const label = `${word(progress.phase)}${total ? ` ${bytes(done)} of ${bytes(total)}` : ""}`;
    parts.push(h("div", {}, h("progress", { "aria-label": label, ...(total ? { value: done, max: total } : {}) }), ` ${label}`));
  }
  const wanted = parts.map((one) => one.outerHTML).join("");
  if (cell.innerHTML !== wanted) cell.replaceChildren(...parts);
}
