/*
 * Search without a server. Browsers start no Worker for a page that is opened from a folder (file://), so
 * there its script runs in a hidden frame. The name is the one that the theme's plugin `offline` looks for:
 * without it the plugin would load another one from the network.
 */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = []
    #frame = document.createElement("iframe")

    constructor(url) {
      super()
      this.#frame.hidden = true
      this.#frame.onload = () => this.#start(new URL(url, location).href)
      document.documentElement.append(this.#frame)
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data)
      else this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    #start(url) {
      const inside = this.#frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      load(url).then(() => {
        const waiting = this.#waiting
        this.#waiting = null
        waiting.forEach((data) => this.postMessage(data))
      })

      function load(src) {
        return new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          Object.assign(script, { src: new URL(src, location).href, onload: done, onerror: failed })
          inside.document.head.append(script)
        })
      }
    }
  }
}
