// Requests as they run: where each sequence is, and a way to stop them.

import { call } from "./api.js";
import { cellButton, h, setText, Table } from "./dom.js";
import { age, count, duration, rate, seconds, word } from "./format.js";

const RUNNING = ["GENERATE_STATUS_INIT", "GENERATE_STATUS_CONTEXT_FINISHED", "GENERATE_STATUS_GENERATING"];

export class Requests {
  constructor(status, report) {
    this.status = status;
    const sequences = (one) => one.sequences ?? [];
    const first = (one) => sequences(one)[0]?.stat ?? {};
    const total = (one) => sequences(one).reduce((sum, each) => sum + (each.generatedLength ?? 0), 0);
    const speed = (one) => sequences(one).reduce((sum, each) => sum + Number(each.stat?.generateTps ?? 0), 0);
    const states = (one) => [...new Set(sequences(one).map((each) => word(each.finishReason ? each.finishReason : each.status)))].join(", ");
    const runs = (one) => sequences(one).some((each) => RUNNING.includes(each.status));
    this.table = new Table("Requests", [
      { title: "Id", text: (one) => shortened(one.request.requestId) },
      { title: "Model", text: (one) => one.request.modelName },
      { title: "Engine", text: (one) => one.request.handle.split("/")[0] },
      { title: "State", text: states },
      { title: "Prompt", text: (one) => count(one.request.promptTokenCount), number: true },
      { title: "Cached", text: (one) => count(first(one).contextCachedLength), number: true },
      { title: "Generated", text: (one) => count(total(one)), number: true },
      { title: "Tokens/s", text: (one) => rate(speed(one)), number: true },
      { title: "Queued", text: (one) => duration(seconds(first(one).timeInQueue)), number: true },
      { title: "First token", text: (one) => duration(seconds(first(one).timeToFirstToken)), number: true },
      { title: "Age", text: (one) => age(first(one).arrivalTime), number: true },
      { title: "Actions", fill: (cell, one) => cellButton(cell, "stop", "Stop", one, async (each) => {
        await report(() => call("RequestService/StopRequest", { handle: each.request.handle }));
        status.ask();
      }, runs(one)) },
    ], "No request is running.");
    this.more = h("p", { class: "faint" });
    const ended = h("input", { type: "checkbox", onchange: () => { status.allRequests = ended.checked; status.ask(); } });
    ended.checked = status.allRequests;
    this.element = h("div", {}, h("h1", {}, "Requests"), h("label", { class: "check" }, ended, "Show those that have ended too"),
      h("div", { class: "card", style: { "margin-top": "12px" } }, this.table.element, this.more));
  }

  update() {
    const { requests, moreRequests, missing } = this.status;
    this.table.update(requests, (one) => one.request.handle);
    const notes = [];
    if (moreRequests) notes.push(`The newest ${requests.length} are shown.`);
    if (missing.length) notes.push(`Not answered: ${missing.map((one) => one.engine).join(", ")}.`);
    setText(this.more, notes.join(" "));
    this.more.hidden = !notes.length;
  }

  close() {}
}

function shortened(id) {
  return id.length > 14 ? `${id.slice(0, 12)}…` : id;
}
